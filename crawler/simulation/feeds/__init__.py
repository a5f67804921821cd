"""Policies tried on feeds: a number of fetches, and how many posts they missed."""
