"""Speak: from the snapshot to the outside."""
