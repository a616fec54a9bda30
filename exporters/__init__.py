"""Exporters: make the snapshot available over HTTP."""
