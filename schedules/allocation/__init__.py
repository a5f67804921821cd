"""Allocation: decide how many visits each target gets from the budget.

`optimal` is the default policy. It equalizes the marginal value of a visit (the Lagrange multiplier
of the budget) over all targets, which `allocate` finds; it also computes the expected stale share
and age of any schedules (Cho and Garcia-Molina 2003, over the posterior of the rate), and the
results of all budgets in one pass. `policies` has the policies for comparison: the frequency
classes of Cho, Lee and Choi (2013), even intervals by the rules of Cho and Garcia-Molina (2003),
and adaptive intervals. `plan` combines them, for targets in any number of shards, and records what
limited each target. Nothing here stores a plan.
"""
