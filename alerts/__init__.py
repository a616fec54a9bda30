"""Generates Prometheus rules, the Alertmanager configuration, and the runbook from the faults."""
