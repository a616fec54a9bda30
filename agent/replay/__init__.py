"""Recordings of a machine's raw responses, with masked names, that can be replayed anywhere."""
