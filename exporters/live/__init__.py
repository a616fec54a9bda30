"""The live page: the current activity of the machine, streamed to browsers; MESSAGES.md documents
the messages."""
