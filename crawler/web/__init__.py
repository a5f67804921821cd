"""The web app: what Freshet stores and plans, in a browser and as JSON.

It is for the people who run Freshet and for their programs. They see sites, targets, changes,
feeds, near-duplicates and budgets, add and edit sites and feeds, start crawls, and apply plans.
Prometheus, WebSub hubs and feed readers have routes as well.

`app` connects the areas in `routes` with users (`auth`), limits (`middleware`) and error pages;
`server` runs it with uvicorn. `metrics`, `dashboards` and `websub` also serve other processes, for
which `server` makes apps of one router.

The app never fetches pages of sites and never plans in its own process: subprocesses do. It sends
no queries to MongoDB itself: `crawler.reports` and `crawler.storage` do. Requests from other
machines need a session or a token, except for `/health`, static files, the sign-in page, the WebSub
callback and the secret Atom feeds.
"""
