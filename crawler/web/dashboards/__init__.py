"""Dashboards of cells, written by `scrapy dashboards build` and kept current by `dashboards serve`.

`sources` finds templates and static files; `render` renders a page and records the cells that it
reads; `build` writes the pages whose cells or templates have changed since the last build; `serve`
builds every second and serves the output folder. `options` defines the options of both commands.

If rendering a page fails, its last version is kept, and other pages are not affected. Only the
output folder is written to.
"""
