"""Scrapy extensions: throttle, live progress, summary."""
