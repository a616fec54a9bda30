"""The stack on a single machine: agent, Prometheus, Alertmanager and Grafana as children of
`up`."""
