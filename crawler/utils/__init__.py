"""Utils."""
