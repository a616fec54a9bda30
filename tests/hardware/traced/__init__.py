"""Loads whose true shares come from a trace of the GPU and the waits of their launching thread."""
