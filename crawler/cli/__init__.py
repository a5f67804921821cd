"""The actions of `scrapy feeds`: one module each, with `add_options` and `run`."""
