"""What commands read and print: their options, their tables, the actions of larger commands.

`base` has the base classes of commands, `types` the values of options, `inspection` the base of
Scrapy's commands for single pages. `feeds`, `duplicates`, `pages` and `dead` carry out the actions
of the command of that name; `plan_output` and `search_output` print what the planner and the search
return.

It stores nothing on its own and knows no formulas. Modules that are slow to import are imported
inside functions, so that `--help` and small commands start quickly.
"""
