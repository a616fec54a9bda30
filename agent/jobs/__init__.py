"""The processes behind the GPUs: which there are, what they do, and the jobs that they form."""
