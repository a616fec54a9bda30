"""The live page: the machine's current activity, streamed to browsers (see MESSAGES.md)."""
