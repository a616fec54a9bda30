"""The status of this machine, computed once per tick and displayed by the page and terminal."""
