"""Similarity of texts: the computations behind near-duplicates, without a database.

`posts` selects and normalizes the text of a post, and has candidates, claims and verdicts.
`minhash` makes a `Sketch` (`sketch`) of a text, in compiled code: MinHash values of its shingles,
and the bands by which the text is found; users choose the scheme. `marks` and `boilerplate` find
the passages that posts of one source share, and remove them from a sketch. `compare` explains the
verdict on two posts. Claims are stored by `crawler.storage.dedup`.
"""
