"""Computes the status of this machine once per tick, for the page, the terminal, and the API."""
