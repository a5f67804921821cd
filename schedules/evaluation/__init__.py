"""Evaluate policies: simulate crawls and score their visits.

`world` holds the ground truth and derives what visits observe of it. `pages`, `feeds` and
`overload` simulate crawls: pages under a budget, feeds that drop their oldest posts, and cells that
one server cannot refresh in time. `score` compares visits with the true changes.

Nothing here reads files or a database, and no simulated crawl uses information that its visits did
not observe.
"""
