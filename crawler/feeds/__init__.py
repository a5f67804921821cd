"""Feed documents and lists of feeds, read however broken.

`parser.read` makes one FeedDocument of RSS, Atom, CDF (`xml`) and JSON Feed (`json`), with dates
that can be true (`dates`) and ids that stay with their posts (`entry_id`). `discovery` finds the
feeds of a web page and the hubs of a response, `opml` reads and writes lists, and `politeness`
says when a feed may be polled.

Nothing here fetches or stores anything. Time and memory grow with a document's length, whatever is
in it.
"""
