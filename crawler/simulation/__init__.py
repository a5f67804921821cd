"""Policies tried on a trace of changes, or on the database's own past."""
