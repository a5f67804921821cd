"""The areas of the web app, one module each.

A module of an area has

router  an APIRouter with pages; its first page is the route named `AREA.index`
api     an APIRouter with the same data as JSON, below /api/v1

Templates of an area are in `templates/AREA`, scripts in `static/AREA.js`. All routes pass
`crawler.web.auth.guard`: they need a signed-in user, and an editor for every method that writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from crawler.web.routes import (
    account,
    backups,
    board,
    budget,
    changes,
    channels,
    dashboards,
    duplicates,
    feeds,
    notifications,
    search,
    setup,
    site_actions,
    sites,
    targets,
)


@dataclass(frozen=True, slots=True)
class Area:
    """An area of the app.

    title:   in the navigation; empty: not in the navigation
    key:     opens the area if pressed after `g`
    is_main: whether it is always visible; else it is in the menu
    parts:   other areas whose pages belong to this one
    writes:  whether it is only for editors
    uploads: paths with their own limit of the body, in bytes
    """

    name: str
    router: APIRouter
    api: APIRouter
    title: str = ""
    key: str = ""
    is_main: bool = False
    parts: tuple[str, ...] = ()
    writes: bool = False
    uploads: tuple[tuple[str, int], ...] = ()


# In the order of the navigation.
AREAS = (
    Area(
        "board", board.router, board.api, "Sites", "b", is_main=True,
        parts=("sites", "site_actions", "setup"),
    ),
    Area("changes", changes.router, changes.api, "Changes", "c", is_main=True),
    Area("feeds", feeds.router, feeds.api, "Feeds", "f", is_main=True, uploads=feeds.UPLOADS),
    Area("search", search.router, search.api, "Search", "s", is_main=True),
    Area(
        "notifications", notifications.router, notifications.api, "Alerts", "o", is_main=True,
        parts=("channels",),
    ),
    Area("setup", setup.router, setup.api, "Add a site", "n", writes=True),
    Area("targets", targets.router, targets.api, "Find a page", "t"),
    Area("budget", budget.router, budget.api, "Budget", "u"),
    Area("duplicates", duplicates.router, duplicates.api, "Near-duplicates", "d"),
    Area("dashboards", dashboards.router, dashboards.api, "Dashboards", "h"),
    # Before the routes of sites, whose names may contain slashes.
    Area("site_actions", site_actions.router, site_actions.api),
    Area("sites", sites.router, sites.api),
    Area("channels", channels.router, channels.api),
    Area("backups", backups.router, backups.api, "Backups", "k", writes=True),
    Area(
        "account", account.router, account.api, "Account and users", "a",
        uploads=((account.SIGN_IN, account.MAX_SIGN_IN_BYTES),),
    ),
)  # fmt: skip
