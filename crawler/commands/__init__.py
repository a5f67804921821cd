"""Scrapy commands; each module is one command of that name."""
