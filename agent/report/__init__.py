"""Reports: GPU-hours over days and their losses, by node, job, user or account."""
