"""The status of this machine, computed once per tick and shown on the page and in the terminal."""
