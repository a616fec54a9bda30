"""Reports: where the GPU-hours of days went, by node, job, user or account."""
