"""Serves the agent's snapshots and status over HTTP, in several formats."""
