"""The stack on one machine: agent, Prometheus, Alertmanager and Grafana as children of `up`."""
