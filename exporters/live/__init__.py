"""The live page shows the current activity of the machine in a browser (see MESSAGES.md)."""
