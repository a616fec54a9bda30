"""Warn: from the catalogue to Prometheus rules."""
