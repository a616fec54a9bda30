"""The processes behind the GPUs: their list, their activity, and the jobs that they form."""
