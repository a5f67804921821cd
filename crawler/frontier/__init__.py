"""Decide what a run fetches and when, and share the work of a run among processes.

`session.Session` is one process's part of a run: it opens the database, prepares or joins the run,
counts visits and sums them up at the end. It gets its targets from one of the `frontiers`.
`LocalFrontier` hands out due targets to a single process. `SharedFrontier` lets any number of
workers lease them from a queue in Redis: `leases` keeps the leases, `redis_queue` and `lua/`
implement the queue and the Scrapy scheduler that uses it, and validate requests from Redis, and
`rate_limits` limits the requests per host. Both use `run_limits`, which orders the targets and ends
a run at its limit, outside visiting hours, or when a cap of the plan is reached.
`lifecycle` prepares a run, counts it, and creates the warnings that are logged at its end;
`summary` sums it up in one line.

A frontier never fetches, parses or stores a page, and does not decide when to revisit it: the plan
does.
"""
