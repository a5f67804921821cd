"""Web servers of commands, on Twisted: metrics, pages of cells, and the WebSub callback.

`server` has what all of them share: the reactor, limits on connections and requests, answers,
signals. `metrics` is the site for Prometheus; `pages` builds and serves pages of cells; `websub`
subscribes to feeds and receives what hubs send. `address` reads `[HOST:]PORT`.

Servers answer only this machine or its own network, but for the WebSub callback, which is meant to
be public. Nothing here fetches pages.
"""
