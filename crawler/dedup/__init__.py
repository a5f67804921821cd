"""How alike two texts are: the math of near-duplicates, without a database.

`post_text` says which text of a post is compared, and brings it to its normal form. `signature`
makes a `Sketch` of a text (`sketch`): MinHash values of its shingles, and the bands by which it is
found. `scheme` names the ways that a user can choose from. `marks` and `boilerplate` find what the
posts of one source have in common, and take it out of a sketch. `kernels` is the machine code,
`compare` explains two posts in words, `model` has what is claimed for a post and what comes of it.
Nothing here reads or writes a store; what is claimed where is `crawler.storage.dedup`.
"""
