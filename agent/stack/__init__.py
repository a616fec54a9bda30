"""The local stack of `up`: agent, Prometheus, Alertmanager, and Grafana as child processes."""
