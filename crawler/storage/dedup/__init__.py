"""Near-duplicates as they are stored: claimed atomically, kept in clusters, shown on posts.

`signatures` has one document a post; a unique index on its bands, or Redis, makes an insert a
claim. `clusters` names the original of posts that are duplicates of one another, and is the truth;
`posts` shows what it says, brought into line by `flags`. `index` opens the index as the settings
ask for it, `claims` judges a batch of posts, `edits` takes posts out again, `boilerplate` learns
what the posts of a source have in common, `rebuild` compares all posts anew. `named` has indexes
apart from the posts'. Nothing here makes sketches or decides how alike two texts are: that is
`crawler.dedup`.
"""
