"""Reports of used and lost GPU-hours by cluster, node, job, user, account, or namespace."""
