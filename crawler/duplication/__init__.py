"""The actions of `scrapy duplicates`."""
