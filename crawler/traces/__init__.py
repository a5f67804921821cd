"""Traces: what truly happened to pages or feeds, from CSV files; and files of visits.

A trace is two files, plain or gzip, that start with a line of column names; other columns may be
there too. `pages` and `feeds` say which columns they need.
"""
