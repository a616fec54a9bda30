"""The agent: hardware backends, metric sources, GPU time accounting, and the command line."""

__version__ = "0.3.0"
