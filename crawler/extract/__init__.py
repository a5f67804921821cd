"""Cells: parts of pages and results of database queries, read for the cell base."""
