"""Command-line interface: options, printed results, and the actions of larger commands.

`base` has the base classes of commands, `types` the types of option values, `json_schemas` the
schemas of JSON output, and `inspection` the base class of Scrapy's commands for single pages.
`commands` has one module per command. `feeds`, `duplicates`, `dashboards` and `deadletters`
implement those with several actions. `plan_output` and `search_output` print results.

This package reads and writes the database only through `crawler.storage`, and leaves estimates and
plans to `crawler.planning`. Slow modules are imported inside functions so that `--help` and small
commands start quickly.
"""
