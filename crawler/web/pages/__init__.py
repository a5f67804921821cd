"""Dashboards of cells: `scrapy pages build` writes them, `scrapy pages serve` keeps them current.

`sources` finds templates and static files; `render` renders a page and records the cells that it
reads; `build` writes the pages whose cells or templates have changed since the last build; `serve`
builds every second and serves the output folder. `options` defines the options of both commands.

If rendering a page fails, its last version is kept, and other pages are not affected. Only the
output folder is written to.
"""
