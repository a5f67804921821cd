"""Dispatch: decide which due targets go first when not all of them can be visited.

`dispatch` orders due targets by the expected refresh ratio of Ha et al. (2002, equations 2 to 6),
by the baselines of that paper, or by value with a minimum for each target. `freshness` estimates
the current freshness and age of copies from their change rates. Dispatch never changes the times of
a plan.
"""
