"""Item pipelines: from a fetched page to a stored visit.

`content` normalizes fields, links and posts and hashes them. `feeds` and `changes` decide outcome,
history and next visit. `duplicates` makes sketches of the texts. `storage` commits the visit in one
atomic write. A pipeline never fetches.
"""
