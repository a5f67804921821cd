"""Command-line interface: options, printed results, and the actions of larger commands.

`base` has the base classes of commands and the schemas of JSON output, and `options` the options
that several commands have. `commands` has one module per command. `duplicates_check` and
`web_accounts` implement actions of larger commands. `plan_output` prints plans.

This package reads and writes the database only through `crawler.storage`, and leaves estimates and
plans to `crawler.planning`. Slow modules are imported inside functions so that `--help` and small
commands start quickly.
"""
