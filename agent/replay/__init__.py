"""Recordings: the raw responses of a machine, recorded with masks and replayed anywhere."""
