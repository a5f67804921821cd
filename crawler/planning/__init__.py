"""Plans: when each page and feed is visited, and what that gives.

`replan` reads what is known of targets (`population`), decides what may be spent (`request`,
`budget`), calls the math in `schedules` and writes plans with their documents (`report`).
`explain` and `reasons` say why a target is visited when it is. `learning` chooses the pages of a
sampling phase. `simulation` tries policies on a trace (`traces`), on the past of the database, or
on cells under overload, and `plots` draws what comes of it.

Nothing here makes requests to sites, and no math is done here that needs no database.
"""
