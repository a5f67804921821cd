"""Item pipelines, which convert a fetched page to a stored visit.

`content` normalizes and hashes fields, links and posts. `change_detection` and `feed_posts`
determine outcome, history and next visit, and `broken` detects broken pages. `storage` computes
sketches of the texts and commits the visit in one atomic write. Pipelines never fetch.
"""
