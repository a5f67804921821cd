"""The pages that `make bench ARGS=--web` requests: every GET route of the app, with its filters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pymongo.database
from fastapi import FastAPI
from fastapi.routing import APIRoute

from crawler.config import Config
from crawler.storage.client import Document
from crawler.utils.urls import target_id
from crawler.web.app import create_app
from crawler.web.dependencies import cursor_of
from tests.bench.webdata import FEEDS, site_name

# Streams, static files, and pages that require fetched pages or users, which the data lacks.
LEFT_OUT = {
    "board.events", "dashboards.file", "setup.frame", "setup.api_selector", "setup.preview",
    "changes.feed", "search.feed", "account.sign_in", "users.user",
}  # fmt: skip
SAMPLE = 60
SEED = 5
Db = pymongo.database.Database[Document]


def get_routes(app: FastAPI) -> Iterator[Any]:
    """Yield name and path of each route that a browser or a program can read."""
    for route in app.routes:
        found = [route] if isinstance(route, APIRoute) else []
        if hasattr(route, "effective_route_contexts"):
            found = list(route.effective_route_contexts())
        yield from (each for each in found if "GET" in each.methods and each.name not in LEFT_OUT)


# Files of a whole site, and what only a channel made in the form or a stored backup has.
NOT_MEASURED = {"sites.csv", "sites.xlsx", "backups.file", "channels.edit"}


class Views:
    """Paths of views by name; names begin with the name of the route."""

    def __init__(self, db: Db, now: datetime) -> None:
        self._rng = random.Random(SEED)
        self._now = now
        self._paths: dict[str, str] = {}
        for route in get_routes(create_app(Config.load())):
            self._paths[route.name] = route.path
        self._urls: dict[str, list[str]] = {}
        sites = [site_name(number) for number in (0, 0, 0, 1, 2, 5, 12, 39)]
        self._targets = [self._target(db, sites[n % len(sites)]) for n in range(SAMPLE)]
        self._add_sites(sites)
        self._add_targets(db)
        self._add_changes(db)
        self._add_posts(db)
        self._add_searches(db, sites)
        self._add_others(sites)

    def by_name(self) -> dict[str, list[str]]:
        """Return the paths of each view; raises RuntimeError if a route has no view."""
        measured = {name.split(maxsplit=1)[0] for name in self._urls}
        if missing := self._paths.keys() - measured - NOT_MEASURED:
            raise RuntimeError(f"routes without a view in tests/bench/webviews.py: {missing}")
        return self._urls

    def _add(self, name: str, parameters: list[dict[str, Any]], **query: Any) -> None:
        """Add a view. parameters: values for each path; values not in the path go to the query."""
        path = self._paths[name.split(maxsplit=1)[0]]
        urls = []
        for given in parameters:
            url, rest = path, {}
            for key, value in given.items():
                marks = [mark for mark in (f"{{{key}}}", f"{{{key}:path}}") if mark in url]
                if marks:
                    url = url.replace(marks[0], quote(str(value)))
                else:
                    rest[key] = value
            fields = urlencode(rest | query, doseq=True)
            urls.append(f"{url}?{fields}" if fields else url)
        self._urls[name] = urls

    def _both(self, page: str, api: str, part: str, parameters: list[dict[str, Any]]) -> None:
        """Add a view of a page and of its JSON."""
        for route in (page, api):
            self._add(f"{route} {part}".strip(), parameters)

    def _target(self, db: Db, site: str) -> Document:
        """Return a random target of a site."""
        start = f"{site} https://{site}.example/catalogue/some-product-with-a-name-"
        after = f"{start}{self._rng.randrange(10, 99)}"
        for beginning in (after, start):
            span = {"$gte": beginning, "$lt": f"{site}!"}
            if (found := db.targets.find_one({"_id": span}, sort=[("_id", 1)])) is not None:
                return found
        raise RuntimeError(f"no targets of {site}")

    def _add_sites(self, sites: list[str]) -> None:
        names = [{"name": site} for site in sites]
        self._add("board.index", [{}])
        self._add("board.api", [{}, {"q": "site1"}, {"tag": "shop"}])
        self._add("board.runs", [{}])
        self._add("sites.api", names)
        filters: dict[str, list[dict[str, Any]]] = {
            "": [{}],
            "limit": [{"limit": 200}],
            "kind": [{"kind": "list"}, {"kind": "item"}],
            "category": [{"category": "category 7"}, {"category": "category 39"}],
            "due": [{"state": "due"}, {"state": "overdue", "sort": "latest"}],
            "error": [{"state": "error"}],
            "gone": [{"state": "gone"}],
            "soonest": [{"sort": "soonest"}, {"sort": "latest"}],
            "text": [{"q": "name-77"}, {"q": "some", "kind": "list"}],
            "text not found": [{"q": "no-such-text"}, {"q": "zzz", "sort": "soonest"}],
            "several": [{"state": "error", "category": "category 3", "kind": "item"}],
        }
        for part, chosen in filters.items():
            given = [name | each for name in names for each in chosen]
            self._both("sites.lists", "sites.api_targets", part, given)
        deep = [
            {"name": row["spider"], "cursor": cursor_of(key)} | chosen
            for row in self._targets
            for key, chosen in (
                ((row["_id"],), {}),
                ((row["url"],), {"kind": "item"}),
                ((row["next_visit"], row["url"]), {"sort": "soonest"}),
                ((row["url"],), {"state": "gone"}),
                ((row["url"],), {"kind": "item", "q": "no-such-text"}),
            )
        ]
        self._both("sites.lists", "sites.api_targets", "deep", deep)
        items: dict[str, list[dict[str, Any]]] = {
            "": [{}], "category": [{"category": "category 7"}], "text": [{"q": "name-77"}],
            "text not found": [{"q": "no-such-text"}], "by name": [{"sort": "name"}],
        }  # fmt: skip
        for part, chosen in items.items():
            given = [name | each for name in names for each in chosen]
            self._both("sites.index", "sites.api_items", part, given)
        for route in ("sites.schedule", "sites.remove"):
            self._add(route, names)
        compared = [{"name": row["spider"], "id": target_id(row["_id"])} for row in self._targets]
        self._both("sites.compare", "sites.api_compare", "", compared)
        visits = [name | {"weekday": day} | {"hour": 9} for name in names for day in (0, 4)]
        self._both("sites.visits", "sites.api_visits", "", names)
        self._both("sites.visits", "sites.api_visits", "hour", visits)
        only = [name | {"changes": True} for name in names]
        self._both("sites.visits", "sites.api_visits", "changes", only)
        cursors = [
            name | {"cursor": cursor_of((self._now - timedelta(days=days),))}
            for name in names
            for days in (3, 20, 50)
        ]
        self._both("sites.visits", "sites.api_visits", "deep", cursors)

    def _add_targets(self, db: Db) -> None:
        newest = db.visits.find({"event": True}).sort("at", -1).limit(2000)
        often = Counter(f"{row['spider']} {row['target']}" for row in newest).most_common(5)
        rows = self._targets + list(db.targets.find({"_id": {"$in": [key for key, _ in often]}}))
        ids = [{"target_id": target_id(row["_id"])} for row in rows]
        urls = [{"url": row["url"]} for row in rows]
        parts = [{"url": row["url"][:-12]} for row in rows]
        self._both("targets.index", "targets.api", "", urls)
        self._both("targets.index", "targets.api", "beginning", parts)
        unknown = [{"url": f"{row['url'][:-11]}x/index.html"} for row in rows]
        self._both("targets.index", "targets.api", "similar", unknown)
        for name in (
            "targets.api_target", "targets.api_values", "targets.versions", "targets.api_versions",
            "targets.forget", "targets.api_changes",
        ):  # fmt: skip
            self._add(name, ids)
        self._both("targets.target", "targets.api_visits", "", ids)
        outcomes = [each | {"outcome": ["changed", "error"]} for each in ids]
        self._both("targets.target", "targets.api_visits", "outcome", outcomes)
        deep = [
            each | {"cursor": cursor_of((self._now - timedelta(days=days),))}
            for each in ids
            for days in (10, 40)
        ]
        self._both("targets.target", "targets.api_visits", "deep", deep)
        self._both("targets.explain", "targets.api_explanation", "", ids)
        changed, pairs = [], []
        events = db.visits.find({"event": True, "outcome": "changed"}).sort("at", -1)
        for event in events.limit(SAMPLE):
            id_ = target_id(f"{event['spider']} {event['target']}")
            hashes = [
                row["content_hash"]
                for row in db.versions.find({"target": event["target"]}).sort("at", -1).limit(2)
            ]
            if len(hashes) == 2:
                changed.append({"target_id": id_, "visit_id": event["_id"]})
                pairs.append({"target_id": id_, "before": hashes[1], "after": hashes[0]})
        self._add("targets.change", changed)
        self._both("targets.compare", "targets.api_difference", "", pairs)
        versions = [
            {"target_id": each["target_id"], "content_hash": each["before"]} for each in pairs
        ]
        self._both("targets.version", "targets.api_version", "", versions)

    def _add_changes(self, db: Db) -> None:
        def both(part: str, parameters: list[dict[str, Any]]) -> None:
            self._both("changes.index", "changes.api", part, parameters)

        both("", [{}])
        both("site", [{"site": site_name(number)} for number in (0, 3, 39)])
        both("kind", [{"kind": "changed"}, {"kind": "gone"}])
        both("text", [{"q": "name-77"}, {"q": "no-such-text"}])
        both("field", [{"field": "price"}, {"category": "category 5"}, {"size": 100_000}])
        events = []
        for days in range(40):
            span = {"$lte": self._now - timedelta(days=days)}
            events += db.visits.find({"event": True, "at": span}).sort("at", -1).limit(1)
        deep = [
            {"cursor": cursor_of((self._now, row["at"], row["_id"], None, None))} for row in events
        ]
        both("deep", deep)
        ids = [{"event": row["_id"]} for row in events]
        self._both("changes.page", "changes.api_page", "", ids)
        newest = db.visits.find({"event": True}).sort("at", -1).limit(20)
        self._both("changes.pages", "changes.api_pages", "", [{"event": e["_id"]} for e in newest])
        self._add("changes.settings", [{}])
        self._add("changes.api_mutes", [{}])

    def _add_posts(self, db: Db) -> None:
        sizes = db.posts.aggregate(
            [
                {"$match": {"duplicate_of": {"$gt": ""}}},
                {"$group": {"_id": "$cluster", "n": {"$sum": 1}}},
                {"$sort": {"n": -1, "_id": 1}},
            ]
        )
        clusters = list(sizes)
        some = clusters[:20] + self._rng.sample(clusters, min(20, len(clusters)))
        for order in ("newest", "largest"):
            chosen = [{"order": order}]
            self._both("duplicates.index", "duplicates.api", order, chosen)
        newest = [{"cursor": cursor_of((row["_id"],))} for row in some]
        self._both("duplicates.index", "duplicates.api", "newest deep", newest)
        self._both(
            "duplicates.cluster", "duplicates.api_cluster", "",
            [{"cluster": row["_id"]} for row in some],
        )  # fmt: skip
        copies = list(db.posts.find({"duplicate_of": {"$gt": ""}}).limit(SAMPLE))
        pairs = [{"a": row["_id"], "b": row["duplicate_of"]} for row in copies]
        self._both("duplicates.compare", "duplicates.api_compare", "", pairs)
        self._add("duplicates.api_precision", [{}])
        feeds = [row["_id"] for row in db.feeds.find().limit(SAMPLE)]
        self._both("feeds.index", "feeds.api_posts", "", [{}])
        self._both("feeds.index", "feeds.api_posts", "all", [{"all": True}])
        of_feeds = [{"feed": feed} for feed in feeds]
        self._both("feeds.index", "feeds.api_posts", "feed", of_feeds)
        folders = [{"folder": "News"}, {"folder": "News/7"}]
        self._both("feeds.index", "feeds.api_posts", "folder", folders)
        posts = list(db.posts.find({"guid": {"$gt": ""}}).limit(SAMPLE))
        deep = [
            {"all": True, "cursor": cursor_of((row["first_seen"], row["_id"]))} for row in posts
        ]
        self._both("feeds.index", "feeds.api_posts", "deep", deep)
        self._both("feeds.post", "feeds.api_post", "", [{"id": row["_id"]} for row in posts])
        self._add("feeds.api_unread", [{}])
        self._both("feeds.health", "feeds.api", "", [{}, {"folder": "News/3"}])
        self._both("feeds.health", "feeds.api", "attention", [{"attention": True}])
        for name in ("feeds.feed", "feeds.remove", "feeds.api_feed"):
            self._add(name, [{"id": feed} for feed in feeds])
        self._add("feeds.add", [{}])
        self._both("feeds.export", "feeds.api_export", "", [{}])

    def _add_searches(self, db: Db, sites: list[str]) -> None:
        posts = list(db.posts.find({"original": True}, {"text": 1}).limit(SAMPLE))
        texts = [row["text"].rstrip(".").split() for row in posts]
        filters: dict[str, dict[str, Any]] = {
            "": {}, "site": {"site": sites[0]}, "category": {"category": "category 7"},
            "kind": {"kind": "item"},
        }  # fmt: skip
        for part, chosen in filters.items():
            self._both("search.index", "search.api", f"newest {part}", [chosen])
            words = [{"q": words[0]} | chosen for words in texts]
            self._both("search.index", "search.api", f"word {part}", words)
        phrases = [{"q": f'"{" ".join(words[3:5])}" {words[9]} -nosuch'} for words in texts]
        self._both("search.index", "search.api", "words", phrases)
        frequent = [{"q": "post"}, {"q": "post 9"}]
        self._both("search.index", "search.api", "frequent word", frequent)
        deep = [
            {"cursor": cursor_of(("n", self._now - timedelta(days=days), 0, 0))} | words
            for days in (1, 20, 60)
            for words in ({}, {"q": "post"})
        ]
        self._both("search.index", "search.api", "deep", deep)

    def _add_others(self, sites: list[str]) -> None:
        moves = [{"budget": n * 10_000} for n in range(20, 140)]
        self._both("budget.index", "budget.api_forecast", "", moves)
        moves = [{"budget": n * 100} for n in range(20, 140)]
        self._both("feed_budget.index", "feed_budget.api_forecast", "", moves)
        for name in ("budget.api", "budget.jobs", "budget.api_jobs", "feed_budget.api"):
            self._add(name, [{}])
        edited = [{"name": site} for site in sites if site != FEEDS]
        self._both("setup.edit", "setup.api_site", "", edited)
        self._add("setup.copy", edited)
        self._add("setup.new", [{"url": "https://site00.example/"}])
        for name in ("waiting", "dead", "delivered"):
            chosen = [{"name": "team", "channel": "team", "state": name}]
            self._both("notifications.channel", "notifications.api_messages", name, chosen)
        deep = [
            {"name": "team", "channel": "team", "state": "delivered", "cursor": cursor_of(key)}
            for days in range(1, 7)
            for key in [(self._now - timedelta(days=days), "x")]
        ]
        self._both("notifications.channel", "notifications.api_messages", "deep", deep)
        previews = [{"key": "cheap"}, {"key": "cheap", "last": 50}]
        self._both("notifications.preview", "notifications.api_preview", "", previews)
        for name in (
            "notifications.index", "notifications.api", "notifications.api_alerts",
            "notifications.api_rules", "notifications.rule",
            "setup.index", "setup.api_sites", "account.index", "account.api_me",
            "dashboards.index", "dashboards.api", "metrics", "api.schema", "api.docs", "health",
            "backups.index", "backups.api", "channels.new", "setup.alert",
            "board.api_service", "search.saved", "search.api_saved",
            "users.index", "users.api", "users.api_tokens", "changes.api_unread",
        ):  # fmt: skip
            self._add(name, [{}])
        audit = [{"cursor": cursor_of((self._now - timedelta(days=9), "x"))}]
        self._both("account.audit", "account.api_audit", "", [{}])
        self._both("account.audit", "account.api_audit", "deep", audit)
