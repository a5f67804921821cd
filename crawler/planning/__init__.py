"""Make and explain plans: when to visit each page and feed.

`replan` reads the targets (`population`), determines the budget (`options`), calls the math in
`schedules`, and writes plans and their documents (`documents`). `report` describes the current
plans. `explain` explains the schedule of a target. `sampling_phase` selects the pages of a sampling
phase. `simulation` compares policies on a trace (`traces`), on the history in the database, or on
cells under overload, and `plots` draws the results. `budget_forecast` computes the expected results
of any budget, a `budget_curve`; `crawler.reports.jobs` runs it and replans in a subprocess of the
web app.

`sharded` does a replan in several processes or on a cluster, which `engines` run.

Nothing here sends requests to sites. Math that needs no database belongs to `schedules`.
"""
