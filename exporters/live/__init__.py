"""The live page: the box's present work, streamed to browsers; MESSAGES.md has the messages."""
