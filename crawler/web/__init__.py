"""Web servers on Twisted: metrics, dashboards of cells, and the WebSub callback.

`server` is shared by all of them: reactor, limits on connections and requests, responses, signals.
`metrics` serves Prometheus; `pages` builds and serves dashboards of cells; `websub` subscribes to
feeds and receives the deliveries of hubs. `address` parses `[HOST:]PORT`.

Servers accept requests only from this machine or the local network, except for the WebSub callback,
which has to be public. Nothing in this package fetches pages.
"""
