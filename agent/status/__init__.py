"""The status of this machine, computed once per tick and shown by the page and the terminal."""
