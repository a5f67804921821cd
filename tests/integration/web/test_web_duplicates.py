"""Near-duplicate clusters in the web app: lists, side-by-side texts, and labels."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from crawler.config import Config
from crawler.storage.dedup import queries
from crawler.storage.dedup.signatures import candidates_of
from crawler.storage.store import opened
from tests.integration.claiming import HOUR, NOW, SCHEME, edited, index, stored, text
from tests.integration.harness import Db
from tests.integration.web.browser import Browser

HOSTILE = "<img src=x onerror=alert(1)>"


def put_posts(uri: str, **texts: str) -> None:
    """Store posts with these texts, one hour apart, and compare them."""

    async def put() -> None:
        async with index(uri) as (db, registry):
            for at, (name, words) in enumerate(texts.items()):
                await db.posts.insert_one(
                    {"_id": f"s {name}", "spider": "s", "url": f"https://s.example/{name}",
                     "title": f"Title {name} {HOSTILE}", "text": words, "content_hash": name,
                     "first_seen": NOW + at * HOUR, "original": True}
                )  # fmt: skip
            posts = await candidates_of(db, SCHEME, [f"s {name}" for name in texts])
            await stored(db, registry, posts)

    asyncio.run(put())


@pytest.fixture
def cluster(stored: tuple[Db, str]) -> str:
    """Store a post with two copies and another post; return the id of their cluster."""
    database, uri = stored
    words = text(1)
    put_posts(uri, a=words, b=edited(words, 3), c=edited(words, 4, seed=2), other=text(9))
    (row,) = database.clusters.find()
    return str(row["_id"])


# Requests paths from the app, and folds two long edits as the inbox does.
REQUEST = """
import sys
from tests.integration import forked
forked.begin()  # the processes that the app starts are forked
from crawler.reports.net_changes import word_change, similar_edits
from crawler.web.options import WebOptions
from tests.integration.web.browser import browsers_of

uri, *paths = sys.argv[1:]
words = [{"text": " ".join(f"word{n}" for n in range(60)) + end} for end in (" a", " b")]
assert similar_edits([word_change({"text": ""}, each) for each in words]) == [0, 0]
with browsers_of(uri, WebOptions()) as make:
    browser = make(address="127.0.0.1")
    for path in paths:
        assert browser.get(path).status_code == 200, path
print([name for name in ("numba", "llvmlite", "scipy") if name in sys.modules])
"""


def label(browser: Browser, same: str, a: str = "s a", b: str = "s b") -> Any:
    form = {"a": a, "b": b, "same": same, "csrf": browser.token("/feeds/add")}
    return browser.post("/duplicates/label", form)


def test_empty_page_reports_no_near_duplicates(local: Browser) -> None:
    page = local.get("/duplicates").text
    assert "No near-duplicates" in page
    assert "No pair has been labeled yet" in page
    assert local.get("/duplicates?order=largest").status_code == 200
    assert local.get("/duplicates?order=nope").status_code == 422
    assert local.get("/duplicates/nope").status_code == 404
    assert local.get("/duplicates/69a5b1f0c2d4e8f1a2b3c4d5").status_code == 404


def test_clusters_are_listed_with_their_copies(local: Browser, cluster: str) -> None:
    for order in ("newest", "largest"):
        (row,) = local.get(f"/api/v1/duplicates?order={order}").json()["clusters"]
        assert (row["cluster"], row["copies"], row["original"]["id"]) == (cluster, 2, "s a")
        assert row["sites"] == ["x"]
        page = local.get(f"/duplicates?order={order}").text
        assert f"/duplicates/{cluster}" in page
        assert HOSTILE not in page
        assert "&lt;img src=x" in page


def test_a_list_of_clusters_names_all_sites(local: Browser, database: Db, cluster: str) -> None:
    for name in ("mirror", "copycat"):
        database.posts.insert_one(
            {"_id": f"{name} a", "spider": name, "url": "https://m.example/a", "title": "Copy",
             "content_hash": "h", "first_seen": NOW, "original": False, "duplicate_of": "s a"}
        )  # fmt: skip
    for order in ("newest", "largest"):
        (row,) = local.get(f"/api/v1/duplicates?order={order}").json()["clusters"]
        assert row["sites"] == ["x", "copycat", "mirror"]
        page = local.get(f"/duplicates?order={order}").text
        assert "<bdi>x</bdi>, <bdi>copycat</bdi>, <bdi>mirror</bdi>" in page


def test_a_cluster_shows_the_texts_side_by_side(local: Browser, cluster: str) -> None:
    page = local.get(f"/duplicates/{cluster}").text
    assert "b is a copy of" not in page
    assert "<ins>" in page
    assert "Not the same" in page
    assert page.count("<bdi>x</bdi>: ") == 2, "each text with its site"
    assert HOSTILE not in page
    other = local.request("GET", f"/duplicates/{cluster}", params={"with": "s c"}).text
    assert 'name="b" value="s c"' in other
    missing = local.request("GET", f"/duplicates/{cluster}", params={"with": "s nope"})
    assert "post not found" in missing.text


def test_words_that_differ_are_marked(local: Browser, stored: tuple[Db, str]) -> None:
    put_posts(stored[1], a="One two three four. Five six.", b="One two 3 four. Five six.")
    page = local.request("GET", "/duplicates/compare", params={"a": "s a", "b": "s b"}).text
    assert "One two <del>three</del> four." in page
    assert "One two <ins>3</ins> four." in page


def test_unknown_posts_keep_the_form_values(local: Browser, cluster: str) -> None:
    page = local.request("GET", "/duplicates/compare", params={"a": "s a", "b": HOSTILE})
    assert page.status_code == 422
    assert "post not found" in page.text
    assert 'value="s a"' in page.text
    assert HOSTILE not in page.text
    same = local.request("GET", "/duplicates/compare", params={"a": "s a", "b": "s a"})
    assert "both are the same post" in same.text


def test_label_separates_a_pair_and_is_counted(local: Browser, cluster: str, database: Db) -> None:
    assert label(local, "false").status_code == 303
    assert "duplicate_of" not in database.posts.find_one({"_id": "s b"})
    assert database.posts.find_one({"_id": "s c"})["duplicate_of"] == "s a"
    page = local.request("GET", "/duplicates/compare", params={"a": "s a", "b": "s b"}).text
    assert "Labeled as not the same by <bdi>local</bdi>" in page
    assert "not duplicates: labeled as such" in page
    assert label(local, "true", b="s c").status_code == 303
    page = local.get("/duplicates").text
    assert "<strong>50.0 %</strong>" in page
    precision = local.get("/api/v1/duplicates/precision").json()
    assert (precision["confirmed"], precision["flagged"]) == (1, 2)
    entry = database.audit.find_one({"action": "POST /duplicates/label"})
    assert entry["detail"] == "not the same: s a and s b"
    assert "the same" in local.get(f"/duplicates/{cluster}").text


def test_api_labels_a_pair(local: Browser, cluster: str, database: Db) -> None:
    new = {"a": "s a", "b": "s other", "same": True}
    answer = local.request("PUT", "/api/v1/duplicates/labels", json=new)
    assert answer.status_code == 200
    assert (answer.json()["same"], answer.json()["flagged"]) == (True, False)
    assert database.posts.find_one({"_id": "s other"})["duplicate_of"] == "s a"
    compared = local.request("GET", "/api/v1/duplicates/compare", params={"a": "s a", "b": "s b"})
    assert compared.json()["duplicates"]
    wrong = local.request("PUT", "/api/v1/duplicates/labels", json=new | {"b": "s nope"})
    assert wrong.status_code == 422
    assert "post not found" in wrong.json()["detail"]


def test_viewers_cannot_label(vic: Browser, cluster: str, database: Db) -> None:
    assert "Not the same" not in vic.get(f"/duplicates/{cluster}").text
    form = {"a": "s a", "b": "s b", "same": "false", "csrf": vic.token("/duplicates")}
    assert vic.post("/duplicates/label", form).status_code == 403
    assert database.duplicate_labels.count_documents({}) == 0


@pytest.mark.parametrize("order", ["newest", "largest"])
def test_clusters_are_paginated(local: Browser, stored: tuple[Db, str], order: str) -> None:
    words = {
        f"p{n}{copy}": edited(text(n), 2, seed=copy) for n in range(5) for copy in range(2 + n % 3)
    }
    put_posts(stored[1], **words)
    seen: list[dict[str, Any]] = []
    cursor = ""
    while True:
        part = local.get(f"/api/v1/duplicates?order={order}&limit=2{cursor}").json()
        seen += part["clusters"]
        if part["next"] is None:
            break
        cursor = f"&cursor={part['next']}"
    assert len({row["cluster"] for row in seen}) == len(seen) == 5
    if order == "largest":
        copies = [row["copies"] for row in seen]
        assert copies == [3, 2, 2, 1, 1]


def test_largest_clusters_are_counted_by_an_index(stored: tuple[Db, str], cluster: str) -> None:
    async def plan() -> Any:
        async with opened(Config.load(mongo_uri=stored[1])) as db:
            await queries.largest_clusters(db, 10)
            return await db.command(
                "explain",
                {"aggregate": "posts", "cursor": {}, "hint": "duplicate_of_1", "pipeline": [
                    {"$match": queries.COPIES},
                    {"$group": {"_id": "$duplicate_of", "copies": {"$sum": 1}}},
                ]},
            )  # fmt: skip

    found = str(asyncio.run(plan()))
    assert "IXSCAN" in found
    assert "'FETCH'" not in found, "documents are read"


@pytest.mark.soak
def test_the_app_does_not_load_the_compiler(stored: tuple[Db, str], cluster: str) -> None:
    paths = [
        "/", "/changes", "/duplicates", f"/duplicates/{cluster}", "/duplicates/compare?a=s+a&b=s+b",
        "/api/v1/duplicates/compare?a=s+a&b=s+b", "/feeds", "/budget", "/targets",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", REQUEST, stored[1], *paths], capture_output=True, text=True,
        check=False, timeout=180,
    )  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr


def test_comparison_process_is_restarted_after_kill(local: Browser, cluster: str) -> None:
    path = "/api/v1/duplicates/compare?a=s+a&b=s+b"
    first = local.get(path).json()
    process = local.app.state.duplicate_jobs.jobs.process
    process.kill()
    assert local.request("GET", path).status_code in (200, 500)
    assert local.get(path).json() == first
    assert local.app.state.duplicate_jobs.jobs.process.pid != process.pid
