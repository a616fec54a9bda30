"""The processes on the GPUs: a table of them, their activity, and their grouping into jobs."""
