"""How good a policy would have been: simulated crawls, and scores of their visits.

`world` is the ground truth and what visits see of it. `pages`, `feeds` and `overload` are the
simulated crawls: pages under a budget, feeds whose posts leave their documents, and cells that one
server cannot refresh in time. `score` holds visits against what truly happened. `sampling` chooses
the pages that stand for all while the planner learns.

Nothing here reads files or a database, and no simulated crawl sees more than its visits saw.
"""
