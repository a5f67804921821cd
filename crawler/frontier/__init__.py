"""Decide what a run fetches and when, and share the work of a run among processes.

One process's part of a run has four objects. `run_state.RunState` counts, without input or output.
`run.Run` holds what a run needs: settings, limits, the database. One of the `frontiers` hands out
targets and takes them back: `LocalFrontier` hands out due targets to a single process;
`SharedFrontier` lets any number of workers lease them from a queue in Redis. `session.Session`
opens and closes the others in order, with the writer, and prepares, joins and sums up the run.

`leases` keeps the leases of a worker, `redis_queue` and `lua/` implement the queue, `scheduler` is
the Scrapy scheduler that uses it, and `rate_limits` limits the requests per host. `admission`
orders the targets and ends a run at one of its `run_limits`: caps, visiting hours, hosts.
`lifecycle` prepares a run, counts it, and creates the warnings that are logged at its end;
`summary` sums it up in one line.

A frontier never fetches, parses or stores a page, and does not decide when to revisit it: the plan
does.
"""
