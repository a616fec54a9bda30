"""The live page: what the box does now, streamed to browsers; MESSAGES.md has what is sent."""
