"""The status: the state of this machine, decided once a tick; page and terminal lay it out."""
