"""The yardstick of several workers: an ordinary scrapy-redis project, as its README advises."""
