"""WebSub, `scrapy feeds push`: hubs send what feeds publish, instead of Freshet polling for it.

`subscriptions` asks hubs for feeds whose subscription is new or about to end; `hubs` sends the
requests, and leaves hubs alone that fail; `callback` answers hubs and stores what they deliver;
`service` runs all of it. `options` are those of the command.

Deliveries are only stored here: the next crawl reads them. Hubs are asked directly, never through a
proxy, so that the guard against private networks sees their addresses.
"""
