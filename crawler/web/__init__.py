"""The web app, and the parts of it that other processes serve.

`app` connects areas in `routes` with users, limits and headers; `serving` runs it with uvicorn.
`metrics` serves Prometheus; `dashboards` builds and serves dashboards of cells; `websub` subscribes
to feeds and receives the deliveries of hubs. `minimal` makes apps of one router, for the service
of `scrapy refresh run` and for `scrapy feeds push`. `address` parses `[HOST:]PORT`.

Servers accept requests only for known hosts, except for the WebSub callback, which checks
signatures. Nothing in this package fetches pages.
"""
