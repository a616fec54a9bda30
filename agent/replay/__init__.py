"""Tapes: the raw answers of a machine, recorded with masks and played back anywhere."""
