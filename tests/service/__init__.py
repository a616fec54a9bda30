"""The service under a real systemd, booted in a container."""
