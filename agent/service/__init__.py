"""The systemd service on this machine, as parts that can be installed and removed again."""
