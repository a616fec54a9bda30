"""Sources: one module per subsystem. Each declares its metrics in a TOML file and reads them."""
