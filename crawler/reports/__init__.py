"""Reports on stored data, as commands and servers show them.

A report is a typed document. Commands print it as a table, or with `--json` as it is; the docstring
below a field is its description in the reference. Reports of plans are in `crawler.planning`.
"""
