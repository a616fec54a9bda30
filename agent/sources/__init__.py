"""Sources: a subsystem per file, each metric declared beside the code that reads it."""
