"""The planner: from what visits have seen to the hours of the next ones. Numbers in, numbers out.

`history` is what is known of targets, `population` what they are, `terms` what is asked of a plan,
`schedule` and `calendar` its result. In between, `estimation` learns how often and when targets
change, `allocation` shares out the budget, `placement` and `cost` find hours; `feeds` does the same
for feeds, `dispatch` decides when not all that is due can go, and `evaluation` judges policies.

It imports nothing of Freshet, Scrapy or the database, and its loops over targets are compiled
(`compiled`). `first_look` and `progress` load neither numpy nor Numba: a crawl imports them.
"""
