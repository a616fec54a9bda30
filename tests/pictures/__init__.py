"""Pictures of the boards, drawn with Grafana's own published components: a developer's tool."""
