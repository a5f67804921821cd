"""WebSub: hubs deliver new posts, so that Freshet need not poll for them.

`subscriptions` requests and renews subscriptions, and backs off from failing hubs; `service` runs
all of it, answers hubs, and stores their deliveries.

Deliveries are only stored here; the next crawl parses them. Requests to hubs bypass proxies, so
that the guard against private networks can check the hub's address.
"""
