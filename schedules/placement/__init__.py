"""Placement: choose the hours of the week in which a target is visited.

`placement` inserts visits where they lower the expected cost most (`schedules.cost`) and improves
them by local search, one target at a time. `load` considers all targets together: it spreads rare
visits over weeks, finds surcharges for full days, and moves visits out of hours that exceed a cap.
Neither changes a target's number of visits.
"""
