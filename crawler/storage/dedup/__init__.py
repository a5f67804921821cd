"""Which stored posts are near-duplicates: claimed atomically, kept in clusters, shown on posts.

`signatures` has one document a post; a unique index on its bands makes an insert a claim.
`clusters` names the original of posts that are duplicates of one another, and is the truth;
`posts` shows what it says.
"""
