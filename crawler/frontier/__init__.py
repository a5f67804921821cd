"""What a run fetches, and when: due targets, request budgets, leases, the state of a run.

`session.Session` is one process's part of a run: it opens the database, prepares the run or joins
it, counts visits, and sums up at the end. Where its targets come from, and which other processes
it shares them with, is behind one interface, `base.Frontier`, with two backends. `local` hands out
what is due to a single process. `shared` lets any number of workers lease it from a queue in
Redis: `worker` holds the leases, `redis_queue` and `lua/` are the queue, `politeness` spaces the
requests to a host, `serializer` bounds what workers accept from Redis, and `scheduler` sends the
requests of spiders through the queue. Both backends go through the same `dispatch`: which targets
go first, and the limit, the hours and the caps (`budget`) that end a run. `lifecycle` is what a run
does before its first request and after its last; `run_warnings` is what it has to tell the user.

A frontier never fetches, reads or stores a page, and it decides nothing about revisits: plans do.
"""
