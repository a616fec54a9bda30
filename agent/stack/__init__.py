"""The local stack: agent, Prometheus, Alertmanager, and Grafana as child processes of `up`."""
