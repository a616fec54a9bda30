"""Recordings: raw responses of a machine, recorded with masks. They can be replayed anywhere."""
