"""Read the hardware and understand it: backends, sources, accounting, and the command line."""

__version__ = "0.3.0"
