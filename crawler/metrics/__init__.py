"""Metrics for Prometheus: of processes at work, and of the database."""
