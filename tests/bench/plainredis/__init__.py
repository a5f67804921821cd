"""The baseline for several workers: an ordinary scrapy-redis project that follows its README."""
