"""Commands of `scrapy`. Each module implements the command with its name.

Freshet's own commands subclass `crawler.cli.base.FreshetCommand`, or `ActionsCommand` if they have
actions such as `scrapy feeds import`. Scrapy's commands for single pages (`fetch`, `parse`,
`shell`, `view`) share the base class in `crawler.cli.base`.

Scrapy imports all modules of this package at each start, so commands import the database driver,
numpy, rich and Twisted only inside the functions that need them. Other packages never import a
command.
"""
