"""Serves the snapshot and the status over HTTP, in several formats."""
