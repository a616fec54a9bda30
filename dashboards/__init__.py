"""Generates the Grafana dashboards from the metrics in the catalogue."""
