"""The live page: the current activity of the machine, streamed to browsers (see MESSAGES.md)."""
