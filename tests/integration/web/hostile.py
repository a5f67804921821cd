"""A database crawled from hostile pages, a feed and cells, and the paths of all views."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlencode

from crawler.utils.urls import target_id
from tests.conftest import Databases
from tests.integration.feeds.test_feed_crawl import subscribe
from tests.integration.harness import Db, Freshet, Pages
from tests.site import hostile_markup

SITE = "hostile"
# Not defined in `notify.toml`, so its messages stay in the outbox.
CHANNEL = "team"
ATTACKS = hostile_markup.ATTACKS
# Items whose target pages are opened; lists show all items.
NAMES = ("script", "attribute", "end-tags", "refresh", "long", "broken")
# Hours between the two editions: all targets are due again.
HOURS = 200.0
CELLS = """
[cells."{name}"]
url = "{url}/item/{page}.html"
css = "{css}"
type = "{type}"
every = "5m"
"""


@dataclass(frozen=True)
class Crawled:
    """The database after two crawls, its site, and commands on it."""

    db: Db
    uri: str
    pages: Pages
    freshet: Freshet

    def url(self, name: str) -> str:
        """Return the URL of an item page."""
        return f"{self.pages.url}/item/{name}.html"


@contextmanager
def crawled(databases: Databases, folder: Path, **env: object) -> Iterator[Crawled]:
    """Crawl both editions of the site, its feed and its cells."""
    with databases() as (db, uri), Pages() as pages:
        own = env | {
            "MONGO_URI": uri, "FRESHET_DATA_DIR": folder / "data",
            "FRESHET_DUPLICATES": "characters",
            "FRESHET_PRIVATE_HOSTS": pages.url.removeprefix("http://"),
        }  # fmt: skip
        with Freshet(folder, **own) as freshet:
            definition = freshet.wrapper(
                SITE, start_urls=[f"{pages.url}/list.html"], item_pages="/item/", robots=False,
                main_text=True,
                fields={
                    "title": "h1", "price": {"css": ".price", "type": "price"},
                    "part": {"css": ".markup", "type": "html"},
                    "words": {"css": "li", "type": "list"},
                },
            )  # fmt: skip
            cells = folder / "cells.toml"
            cells.write_text(_cells(pages.url), encoding="utf-8")
            subscribe(db, uri, f"{pages.url}/feed.xml", categories=[ATTACKS["script"]])
            for edition in (1, 2):
                write(pages, edition)
                hours = HOURS * (edition - 1)
                freshet.crawl(definition, hours=hours)
                for words in (("feeds",), ("cells", "-a", f"file={cells}")):
                    done = freshet(
                        "crawl", *words, "-s", "AUTOTHROTTLE_ENABLED=0", "-s", "DOWNLOAD_DELAY=0",
                        hours=hours,
                    )  # fmt: skip
                    assert done.code == 0, done.err
            put_messages(db)
            yield Crawled(db, uri, pages, freshet)


def put_messages(db: Db) -> None:
    """Store a rule with attacks, a message about each change, and dead letters with attacks."""
    keys = {
        "name": "attacks", "events": ["changed"], "sites": [ATTACKS["attribute"]],
        "categories": [ATTACKS["script"]], "urls": ["<b>"], "channels": [CHANNEL],
        "when": [f"title contains {ATTACKS['attribute']}"[:300]], "failures": 3,
    }  # fmt: skip
    by = {"by": "anna", "at": datetime.now(UTC), "edits": 0}
    db.notification_rules.insert_one({"_id": "attacks", "keys": keys} | by)
    attack = ATTACKS["attribute"]
    db.notification_channels.insert_one(
        {
            "_id": "stored", "service": "mail", "sealed": b"",
            "keys": {"smtp": {"host": attack, "from": attack, "to": [attack], "user": attack}},
        } | by
    )  # fmt: skip
    changes = db.visits.find({"event": True, "spider": SITE}).sort("_id").limit(40)
    for number, change in enumerate(changes):
        attack = list(ATTACKS.values())[number % len(ATTACKS)][:300]
        is_dead = number % 2 == 1
        db.outbox.insert_one(
            {
                "_id": f"msg_{number}", "channel": CHANNEL, "rule": attack, "event": "changed",
                "spider": change["spider"], "target": change["target"], "at": change["at"],
                "data": {"title": attack}, "state": "dead" if is_dead else "waiting",
                "due": change["at"], "attempts": 1, "reason": attack,
            } | ({"dead_at": change["at"]} if is_dead else {"first_at": change["at"]})
        )  # fmt: skip


def write(pages: Pages, edition: int) -> None:
    """Write the files of an edition."""
    for path, content in hostile_markup.files(edition).items():
        place = pages.home / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def _cells(url: str) -> str:
    texts = [
        CELLS.format(name=f"{kind}-{page}", url=url, page=page, css=css, type=kind)
        for page in ("script", "handlers", "svg", "css", "loads")
        for kind, css in (("html", ".markup"), ("text", "h1"), ("list", "li"))
    ]
    return f'name = "{SITE}-cells"\n' + "".join(texts)


def views(crawled: Crawled, secret: str) -> dict[str, list[str]]:
    """Return the paths to open by the path of the route, for all routes outside of the JSON API.

    secret: token of the Atom feed
    """
    db, feed = crawled.db, f"feeds {crawled.pages.url}/feed.xml"
    items = [f"/targets/{target_id(f'{SITE} {crawled.url(name)}')}" for name in NAMES]
    first = items[0]
    posts = db.posts.find({"spider": "feeds"}).sort("_id").limit(len(NAMES))
    changes = list(db.visits.find({"outcome": "changed", "spider": SITE}).sort("_id").limit(3))
    clusters = [row["_id"] for row in db.clusters.find().sort("_id").limit(3)]
    of_change = target_id(f"{SITE} {changes[0]['target']}")
    home = f"{crawled.pages.url}/list.html"
    pair = [row["_id"] for row in db.posts.find({"spider": SITE}).sort("_id").limit(2)]
    edit = {
        "name": "new", "start_urls": home, "item_pages": "/item/",
        "field_name": "part", "field_selector": ".markup", "field_language": "css",
        "field_type": "html",
    }  # fmt: skip
    return {
        "/": ["/", f"/?{urlencode({'q': ATTACKS['attribute']})}"],
        "/health": ["/health"],
        "/metrics": ["/metrics"],
        "/changes": ["/changes", f"/changes?{urlencode({'q': ATTACKS['attribute']})}"],
        "/changes/of/{event}": [f"/changes/of/{change['_id']}" for change in changes],
        "/changes/of/{event}/pages": [f"/changes/of/{changes[0]['_id']}/pages"],
        "/changes/settings": [f"/changes/settings?{urlencode({'url': ATTACKS['script']})}"],
        "/changes/feed.atom": [f"/changes/feed.atom?token={secret}"],
        "/targets": [
            "/targets", f"/targets?{urlencode({'url': crawled.pages.url + '/item/s'})}",
            f"/targets?{urlencode({'url': ATTACKS['attribute']})}",
        ],
        "/targets/{target_id}": items,
        "/targets/{target_id}/explain": [f"{first}/explain"],
        "/targets/{target_id}/versions": [f"{first}/versions"],
        "/targets/{target_id}/versions/{content_hash:path}": [
            f"/targets/{target_id(row['_id'].rpartition(' ')[0])}/versions/{row['content_hash']}"
            for row in db.versions.find({"spider": SITE}).sort("_id")
            if row["target"] in {home, *map(crawled.url, NAMES)}
        ],
        "/targets/{target_id}/compare": [
            f"{path}/compare?view={view}"
            for path in items
            if path != items[NAMES.index("refresh")]
            for view in ("side", "inline")
        ],
        "/targets/{target_id}/visits/{visit_id}": [
            f"/targets/{of_change}/visits/{changes[0]['_id']}"
        ],
        "/targets/{target_id}/forget": [f"{first}/forget"],
        "/feeds": ["/feeds", f"/feeds?{urlencode({'folder': ATTACKS['script']})}"],
        "/feeds/post": [f"/feeds/post?{urlencode({'id': post['_id']})}" for post in posts],
        "/feeds/health": ["/feeds/health"],
        "/feeds/feed": [f"/feeds/feed?{urlencode({'id': feed})}"],
        "/feeds/remove": [f"/feeds/remove?{urlencode({'id': feed})}"],
        "/feeds/add": ["/feeds/add"],
        "/feeds/export": ["/feeds/export"],
        "/search": [
            "/search?q=item",
            "/search",
            f"/search?{urlencode({'q': ATTACKS['attribute'], 'category': ATTACKS['script']})}",
            f"/search?{urlencode({'q': 'script', 'site': SITE, 'from': '2000-01-01'})}",
            f"/search?{urlencode({'q': ATTACKS['script']})}",
            "/search?q=%21%21",
        ],
        "/search/saved": ["/search/saved"],
        "/search/feed.atom": ["/search/feed.atom?token=none"],
        "/duplicates": ["/duplicates"],
        "/duplicates/compare": [
            f"/duplicates/compare?{urlencode({'a': pair[0], 'b': pair[1]})}",
            f"/duplicates/compare?{urlencode({'a': ATTACKS['attribute'], 'b': '<b>'})}",
        ],
        "/duplicates/{cluster}": [f"/duplicates/{cluster}" for cluster in clusters],
        "/budget": [f"/budget?{urlencode({'budget': ATTACKS['attribute']})}"],
        "/budget/feeds": ["/budget/feeds"],
        "/budget/jobs": ["/budget/jobs"],
        "/setup": ["/setup"],
        "/setup/new": [f"/setup/new?{urlencode({'url': home})}"],
        "/setup/sites/{name}": [f"/setup/sites/{SITE}"],
        "/setup/copy/{name}": [f"/setup/copy/{SITE}"],
        "/setup/alert": ["/setup/alert"],
        "/setup/preview": [f"/setup/preview?{urlencode(edit)}"],
        "/setup/frame": [
            f"/setup/frame?{urlencode({'url': crawled.url(name)})}" for name in ATTACKS
        ],
        "/sites/{name:path}": [
            f"/sites/{SITE}", f"/sites/{SITE}?sort=value:price", f"/sites/{SITE}?sort=-value:words",
            f"/sites/{SITE}?{urlencode({'q': ATTACKS['attribute'], 'category': '<b>'})}",
        ],
        "/sites/{name:path}/compare": [
            f"/sites/{SITE}/compare?{urlencode([('id', path.split('/')[2]) for path in items])}",
            f"/sites/{SITE}/compare?{urlencode({'id': ATTACKS['attribute'], 'field': '<b>'})}",
        ],
        "/sites/{name:path}/items.csv": [f"/sites/{SITE}/items.csv"],
        "/sites/{name:path}/items.xlsx": [f"/sites/{SITE}/items.xlsx"],
        "/sites/{name:path}/lists": [
            f"/sites/{SITE}/lists", f"/sites/{quote(SITE)}-cells/lists", "/sites/feeds/lists",
        ],
        "/sites/{name:path}/schedule": [f"/sites/{SITE}/schedule"],
        "/sites/{name:path}/remove": [f"/sites/{SITE}/remove"],
        "/sites/{name:path}/visits": [f"/sites/{SITE}/visits"],
        "/notifications": ["/notifications"],
        "/notifications/channel": [
            f"/notifications/channel?{urlencode({'name': CHANNEL, 'state': state})}"
            for state in ("waiting", "dead")
        ],
        "/notifications/channels/new": [
            "/notifications/channels/new", "/notifications/channels/new?service=mail",
            "/notifications/channels/new?service=telegram",
        ],
        "/notifications/channels/edit": ["/notifications/channels/edit?name=stored"],
        "/notifications/rule": ["/notifications/rule", "/notifications/rule?key=attacks"],
        "/notifications/preview": [
            f"/notifications/preview?{urlencode({'events': event, 'last': 50})}"
            for event in ("new", "changed")
        ] + [f"/notifications/preview?{urlencode({'key': ATTACKS['attribute']})}"],
        "/dashboards": ["/dashboards"],
        "/dashboards/{path:path}": ["/dashboards/index.html"],
        "/backups": ["/backups"],
        "/backups/file": ["/backups/file?name=none"],
        "/sign-in": [f"/sign-in?{urlencode({'next': ATTACKS['attribute']})}"],
        "/account": ["/account"],
        "/users": ["/users"],
        "/account/audit": ["/account/audit"],
        "/api/docs": ["/api/docs"],
        "/api/openapi.json": ["/api/openapi.json"],
    }  # fmt: skip
