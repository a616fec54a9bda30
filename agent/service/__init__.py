"""Parts of the systemd service: logging, notifications, and the files to install."""
