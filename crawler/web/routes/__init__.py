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
    board,
    budget,
    changes,
    dashboards,
    duplicates,
    feeds,
    notifications,
    setup,
    sites,
    targets,
)


@dataclass(frozen=True, slots=True)
class Area:
    """An area of the app.

    title:   in the navigation; empty: not in the navigation
    key:     opens the area if pressed after `g`
    uploads: paths with their own limit of the body, in bytes
    """

    name: str
    router: APIRouter
    api: APIRouter
    title: str = ""
    key: str = ""
    uploads: tuple[tuple[str, int], ...] = ()


# In the order of the navigation.
AREAS = (
    Area("board", board.router, board.api, "Board", "b"),
    Area("changes", changes.router, changes.api, "Changes", "c"),
    Area("targets", targets.router, targets.api, "Targets", "t"),
    Area("feeds", feeds.router, feeds.api, "Feeds", "f", feeds.UPLOADS),
    Area("duplicates", duplicates.router, duplicates.api, "Near-duplicates", "d"),
    Area("notifications", notifications.router, notifications.api, "Notifications", "o"),
    Area("budget", budget.router, budget.api, "Budget", "u"),
    Area("setup", setup.router, setup.api, "Add a site", "n"),
    Area("sites", sites.router, sites.api),
    Area("dashboards", dashboards.router, dashboards.api, "Dashboards", "h"),
    Area(
        "account",
        account.router,
        account.api,
        "Account",
        "a",
        ((account.SIGN_IN, account.MAX_SIGN_IN_BYTES),),
    ),
)
