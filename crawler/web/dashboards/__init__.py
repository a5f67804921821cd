"""Dashboards of cells, which the web app renders when they are requested.

`sources` finds templates and static files, and `render` renders a page from the cells of that
moment.
"""
