"""Dashboards of cells, written by `scrapy dashboards build` and by the web app.

`sources` finds templates and static files; `build` renders pages, records the cells that each page
reads, and writes the pages whose cells or templates have changed since the last build, once or
every second in the web app, which serves the output folder.

If rendering a page fails, its last version is kept, and other pages are not affected. Only the
output folder is written to.
"""
