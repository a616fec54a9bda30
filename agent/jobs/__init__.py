"""Processes on the GPUs: the process table, their activity, and the jobs that they form."""
