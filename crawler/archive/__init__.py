"""The archive of a site: its responses as received, in WARC files with an index.

`records` builds WARC records and the lines of CDXJ indexes, `files` manages the files of a site,
reads and checks them, and repairs them after a crash, `writer` appends for a crawl, and `wacz`
exports everything as one file. No module here fetches, or talks to a database.
"""
