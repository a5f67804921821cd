"""Allocation: how many visits each target gets out of the budget.

`optimal` is the default policy: one marginal value (Lagrange multiplier) over all targets, found by
`allocate`. `policies` has those it is compared with: the groups of Cho, Lee and Choi 2013, even
intervals by the rules of Cho and Garcia-Molina 2003, adaptive intervals. `outlook` is what is
expected of any schedules: stale share and age (Cho and Garcia-Molina 2003, over the posterior of
the rate). `plan` puts it together, with what decided for each target; it stores nothing.
"""
