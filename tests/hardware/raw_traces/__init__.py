"""Records everything that a driver and a kernel tell while labelled loads run: numpy arrays."""
