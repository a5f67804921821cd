"""Placement: the hours of the week at which a target's visits come.

`placement` inserts visits where they lower the expected cost most (`schedules.cost`) and improves
them by local search, one target at a time. `load` sees all targets: it spreads rare visits over
weeks, finds surcharges for full days, and moves visits out of hours that are over a cap. Neither
changes how many visits a target has.
"""
