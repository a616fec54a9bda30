"""Alerts: Prometheus rules generated from the catalogue."""
