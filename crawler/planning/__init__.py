"""Replanning: from what is stored and what is asked to a plan, and what it writes."""
