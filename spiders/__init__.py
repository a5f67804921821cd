"""Spiders: one file per site, with the URL patterns of its pages and the fields of its items."""
