"""Exporters: expose the snapshot over HTTP."""
