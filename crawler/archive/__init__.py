"""The archive of a site: its responses as they came, in WARC files with an index.

`records` builds WARC records, `files` manages the files of a site and repairs them after a crash,
`writer` appends for a crawl, `index` builds CDXJ indexes, `reader` reads records back, and `wacz`
exports everything as one file. No module here fetches, or talks to a database.
"""
