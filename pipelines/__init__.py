"""Item pipelines, which convert a fetched page to a stored visit.

`content` normalizes and hashes fields, links and posts. `feeds` and `changes` determine outcome,
history and next visit. `storage` computes sketches of the texts and commits the
visit in one atomic write. Pipelines never fetch.
"""
