"""The tape's rooms: answers as JSON, masks, the reel that is written, the tape that is read."""
