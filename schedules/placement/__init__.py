"""Placement: choose the hours of the week in which a target is visited.

`placement` inserts visits where they lower the expected cost most (`schedules.cost`) and improves
them by local search, one target at a time. `load` and `leveling` consider all targets together:
`load` spreads rare visits over weeks and finds surcharges for full days, `leveling` moves visits
out of hours that exceed a cap. None of them changes a target's number of visits.
"""
