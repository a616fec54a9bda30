"""Recordings: raw responses of a machine, recorded with masks, which can be replayed anywhere."""
