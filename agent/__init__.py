"""The telemetry agent: it reads metrics of GPUs and their host, and accounts for GPU time."""

__version__ = "0.3.0"
