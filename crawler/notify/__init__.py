"""Notifications: from the marks of events to the messages that channels accept.

`rounds` runs a round. It applies the rules to marked events, decides on messages that wait for the
next visit of their page (both in `rules`), and delivers what is due with `channels` (keys and
times), `messages` (texts by templates of the user in a sandbox) and `senders` (one attempt: a
signed webhook, an email, Apprise).

A message is sent at least once, with the same id for every attempt. `senders` and `messages`
neither retry nor store anything. `channels` computes the times of attempts from arguments only: the
current time and a random number generator.
"""
