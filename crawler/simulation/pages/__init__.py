"""Policies tried on pages: requests a day, and how fresh the copies were."""
