"""Show: from the catalogue to Grafana dashboards."""
