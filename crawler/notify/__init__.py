"""Send notifications: what a message says, and how a channel receives it.

`messages` renders events of pages as messages, with templates of the user in a sandbox. `channels`
validates the channels of `notify.toml`, and decides when a message may be sent and tried again.
`delivery` sends it: as a signed webhook, as an email, or by Apprise.

A call of `delivery.send` is one attempt. It either returns, or raises `DeliveryFailed` with the
reason, within a time limit. Nothing here repeats an attempt, stores a message, fetches a page or
reads a clock to decide: times and random numbers are arguments.
"""
