"""`scrapy duplicates explain`: two posts compared again, and what was decided about them."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from crawler.command import print_json
from crawler.config import Config
from crawler.dedup.scheme import Scheme
from crawler.dedup.sketch import Sketch
from crawler.errors import ConfigError
from crawler.finding import names_of, nearest
from crawler.storage.client import Database, Document
from crawler.storage.duplicates import comparing, reading
from crawler.storage.store import opened
from crawler.utils.terminal import SafeConsole
from crawler.utils.text import listed
from crawler.utils.urls import is_http

if TYPE_CHECKING:
    from crawler.dedup.compare import Side


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which posts."""
    for name in ("A", "B"):
        parser.add_argument(f"url_{name.lower()}", metavar=f"URL_{name}", help="or a post's id")
    parser.add_argument("--spider", metavar="NAME", help="where several have posts with the URL")


def run(config: Config, opts: argparse.Namespace) -> int:
    """Print how alike they are and why they are what they are."""
    scheme, posts, sides = asyncio.run(_read(config, opts))
    told = _told(scheme, posts, sides)
    if opts.json:
        print_json(told)
    else:
        from crawler.duplication.explainlines import show

        show(SafeConsole(), told)
    return 0


async def _read(
    config: Config, opts: argparse.Namespace
) -> tuple[Scheme, list[Document], list[Side]]:
    async with opened(config) as db:
        scheme = await reading.stored_scheme(db, config)
        given = (opts.url_a, opts.url_b)
        posts = [await _post(db, config, url, opts.spider) for url in given]
        if posts[0]["_id"] == posts[1]["_id"]:
            raise ConfigError(f"both are the same post: {posts[0]['_id']}")
        return scheme, posts, await _sides(db, scheme, posts)


async def _post(db: Database, config: Config, given: str, spider: str | None) -> Document:
    urls = names_of(given, config) if is_http(given) else []
    found = await reading.posts_named(db, given, urls, spider)
    if not found:
        near = await nearest(db, given, ("posts",))
        mean = f"Did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(
            f"no post has the URL or id {given}. {mean}scrapy search WORDS finds posts"
        )
    items = {post.get("item") for post in found}
    if len(found) > 1 and len(items) == 1 and None not in items:
        # All are the same item: the page itself is meant, rather than what feeds have of it.
        return min(found, key=lambda post: ("feed" in post, post["_id"]))
    if len(found) > 1:
        ids = listed([repr(post["_id"]) for post in found])
        raise ConfigError(f"several posts have the URL {given}; give one's id: {ids}")
    return found[0]


async def _sides(db: Database, scheme: Scheme, posts: list[Document]) -> list[Side]:
    from crawler.dedup.boilerplate import weighed
    from crawler.dedup.compare import Side  # with the kernels' machine code
    from crawler.storage.duplicates import boilerplate
    from crawler.storage.duplicates.registry import Registry

    stored = await reading.signatures_of(db, [post["_id"] for post in posts])
    ids = {row["cluster"] for row in stored.values() if "cluster" in row}
    originals = await reading.originals_of(db, ids)
    sides = []
    for post in posts:
        text, sketch = comparing.compared_text(post), comparing.sketch_of(post, scheme)
        side = Side(post["_id"], text, sketch, item=post.get("item"))
        known = comparing.sourced_of(post) if scheme.weighs else None
        if known is not None and sketch is not None:
            tables = await boilerplate.tables_of(Registry.of(db, scheme), [known.source])
            side = replace(side, sketch=weighed(sketch, known, tables[known.source]))
        if row := stored.get(post["_id"]):
            cluster = row.get("cluster")
            side = replace(
                side,
                scheme=row["scheme"],
                stored=Sketch.decode(row["sketch"]),
                at=row["at"],
                cluster=cluster,
                original=originals.get(cluster),
            )
        sides.append(side)
    return sides


def _told(scheme: Scheme, posts: list[Document], sides: list[Side]) -> Document:
    from crawler.dedup import compare as verdicts
    from crawler.duplication import sidebyside

    a, b = sides
    measured = verdicts.measure(a, b)
    return {
        "a": _of_side(posts[0], a),
        "b": _of_side(posts[1], b),
        "shared_bands": measured.shared_bands,
        "of_bands": measured.of_bands,
        "similarity": measured.similarity,
        "exact": measured.exact,
        "scheme": scheme.name,
        "threshold": scheme.threshold,
        "same_item": verdicts.is_same_item(a, b),
        "duplicates": verdicts.are_duplicates(a, b),
        "verdict": verdicts.verdict(a, b, measured, scheme),
        "is_long": sidebyside.is_long(a.text) or sidebyside.is_long(b.text),
        "diff": [row._asdict() for row in sidebyside.rows(a.text, b.text)],
    }


def _of_side(post: Document, side: Side) -> Document:
    from crawler.dedup.compare import shape_name

    shapes = side.sketch.parts if side.sketch else ()
    own = side.sketch.own if side.sketch else None
    bandings = side.sketch.bandings if side.sketch else ()
    return {
        "id": post["_id"],
        "url": post.get("url"),
        "title": post.get("title"),
        "created": comparing.created_of(post),
        "characters": len(side.text),
        "words": len(side.text.split()),
        "boilerplate": round(1 - own.share, 3) if own else 0.0,
        "shingles": [shape_name(shape) for shape in shapes],
        "bandings": [f"{banding.bands} x {banding.rows}" for banding in bandings],
        "compared_at": side.at,
        "changed_since": side.at is not None and side.is_changed,
        "cluster": side.cluster,
        "original": side.original,
        "item": side.item,
    }
