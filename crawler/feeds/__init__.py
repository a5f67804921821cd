"""Parse feed documents and lists of feeds, including malformed ones.

`parser.read` converts RSS, Atom, CDF and JSON Feed to a FeedDocument with stable post ids and
plausible dates (`draft`). `discovery` finds the feeds of a web page and the hubs of a response.
`subscriptions` reads and writes lists of feeds.

Nothing in this package fetches or stores anything. Time and memory are linear in the length of a
document, even for hostile documents.
"""
