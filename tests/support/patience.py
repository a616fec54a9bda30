"""How long a test waits for a condition."""

PATIENCE = 600.0
"""Seconds after which a test gives up: no machine is as slow, so it measures no speed."""
