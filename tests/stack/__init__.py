"""Tests of the whole stack: real agents, Prometheus and Alertmanager, down to the message."""
