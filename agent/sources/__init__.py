"""Sources: one file per subsystem, with each metric declared next to the code that reads it."""
