"""Tracks the processes on the GPUs, measures their activity, and groups them into jobs."""
