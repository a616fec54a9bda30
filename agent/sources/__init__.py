"""Sources of metrics: one module per subsystem. Each module reads the metrics in its TOML file."""
