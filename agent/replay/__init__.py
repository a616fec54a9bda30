"""Records the raw responses of a machine with masked names, and replays recordings."""
