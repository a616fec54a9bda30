"""Processes on the GPUs: process table, activity, and the jobs that the processes form."""
