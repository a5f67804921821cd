"""Reports on stored data, as commands and servers show them.

A report is a typed document about sites, targets, changes, feeds or notifications. Commands print
it as a table, or with `--json` as it is; the web app renders it as a page, or returns it as JSON.
The docstring below a field is its description in both references.

Modules query `crawler.storage` and combine the results. A few also change something, such as what a
user has read or which feeds are stored, because commands and the web app share the change.

No report formats text, depends on HTTP or fetches pages. Texts from sites are limited in length.
Reports of plans are in `crawler.planning`.
"""
