"""The status: all that is so on this machine, decided once a tick; page and terminal lay it out."""
