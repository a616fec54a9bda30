"""Loads whose true shares come from a trace of the GPU and from what their launching thread waits for."""
