"""The commands of `scrapy`; each module is one command and gives it its name.

Freshet's own commands subclass `crawler.cli.base.FreshetCommand`, or `ActionsCommand` where they
have actions such as `scrapy feeds import`. Those of Scrapy's that read single pages (`fetch`,
`parse`, `shell`, `view`) share `crawler.cli.inspection`.

Scrapy imports every module of this package at each start, so a command imports the database, numpy,
rich and Twisted only inside the functions that need them. No other package imports a command.
"""
