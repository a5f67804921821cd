"""Dispatch: who goes first when not all that is due can go.

`dispatch` orders due targets by the expected refresh ratio of Ha et al. 2002 (equations 2 to 6), by
the baselines of that paper, or by value with a minimum for each target. `freshness` is how fresh
copies are at this moment, by what is known of their rates. A plan's times are not changed here.
"""
