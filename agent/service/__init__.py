"""The systemd service on this machine, as parts that can be put there and removed again."""
