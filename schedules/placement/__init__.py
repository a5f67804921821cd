"""Placement: choose the hours of the week in which a target is visited.

`placement` inserts visits where they lower the expected cost most (`schedules.cost`) and improves
them by local search, one target at a time. `load` considers all targets together: it spreads rare
visits over weeks and finds surcharges for full days. Neither changes a target's number of visits.
"""
