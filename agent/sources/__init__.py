"""Sources: one subsystem a file, each metric declared beside the code that reads it."""
