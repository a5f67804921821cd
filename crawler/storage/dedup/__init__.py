"""Near-duplicate storage: atomic claims, clusters, and the verdicts shown on posts.

`signatures` has one document per post. A unique index on its bands turns an insert into a claim.
`clusters` is authoritative: it names the original of posts that are duplicates of one another, and
updates `posts` to match. `index` opens the index that the settings ask for, and rebuilds it,
`claims` judges a batch of posts, `edits` removes posts, `boilerplate` learns the passages that the
posts of a source share, `labels` stores people's decisions on pairs of posts. `check_index` has the
temporary index of `scrapy duplicates check`. Sketches and similarity are in `crawler.dedup`.
"""
