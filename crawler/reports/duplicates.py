"""Reports on near-duplicates: two posts side by side with the verdict on them, and labels."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.dedup.schemes import Scheme
from crawler.dedup.sketch import Sketch
from crawler.dedup.text import normal_text
from crawler.errors import ConfigError
from crawler.storage.client import Database, Document
from crawler.storage.dedup import labels, queries, signatures
from crawler.storage.dedup.index import META, stored_scheme
from crawler.storage.dedup.labels import Label
from crawler.storage.dedup.queries import Cluster
from crawler.storage.target_queries import names_of, nearest
from crawler.utils.diff import Matcher
from crawler.utils.edits import DiffBuilder, DiffPart
from crawler.utils.shapes import copied
from crawler.utils.terminal import printable
from crawler.utils.text import listed
from crawler.utils.urls import is_http

if TYPE_CHECKING:
    from crawler.dedup.compare import ComparedPost


# Only the beginnings of long texts are compared.
MAX_CHARACTERS, MAX_SENTENCES = 100_000, 1500
# Characters.
MAX_SENTENCE = 240
# Periods, exclamation and question marks of Chinese and Japanese, and closing quotation marks.
_STOPS = "\u3002\uff01\uff1f\uff61"
_CLOSING = "\"'\u201d\u2019\u300d\u300f)\\]\uff09\u3011"
_ENDS = re.compile(rf"[{_STOPS}]+[{_CLOSING}]*|[.!?…]+[{_CLOSING}]*\s+")
_PIECES = re.compile(rf"(?s).{{1,{MAX_SENTENCE}}}(?:\s|$)|.{{1,{MAX_SENTENCE // 2}}}")


class PostReport(TypedDict):
    """One of the two posts."""

    id: str
    """Id of the post."""
    spider: str | None
    """Name of the site."""
    url: str | None
    """URL of the page; null for a post without a link."""
    title: str | None
    """Title."""
    created: datetime
    """Date of publication, else time of the first visit that saw the post."""
    characters: int
    """Characters of the compared text."""
    words: int
    """Words of the compared text."""
    boilerplate: float
    """Share of the text that other posts of the same source have, too."""
    shingles: list[str]
    """Sizes of the shingles of the text."""
    bandings: list[str]
    """Numbers of LSH bands and rows."""
    compared_at: datetime | None
    """Time when the post was compared with the others; null before that."""
    changed_since: bool
    """Whether the text has changed since then."""
    cluster: str | None
    """Id of the cluster of near-duplicates."""
    original: str | None
    """Id of the cluster's original."""
    item: str | None
    """Key of the page that the post is a source of."""


class Comparison(TypedDict):
    """Two posts, their similarity, and the verdict."""

    a: PostReport
    """The first post."""
    b: PostReport
    """The second post."""
    shared_bands: int
    """Number of LSH bands that both have."""
    of_bands: int
    """Number of LSH bands that they could share."""
    similarity: float
    """Estimated Jaccard similarity."""
    exact: dict[str, float]
    """Exact Jaccard similarity by size of the shingles."""
    datasketch: dict[str, float]
    """Estimates by the library datasketch, by size of the shingles; empty unless requested."""
    scheme: str
    """How the posts are compared."""
    threshold: float
    """Minimum similarity of duplicates."""
    same_item: bool
    """Whether both posts are sources of one item."""
    duplicates: bool
    """Whether both posts are in one cluster, and not sources of one item."""
    verdict: str
    """Whether the posts are duplicates, and why."""
    label: Label | None
    """Label that a user gave the pair; null: none."""
    is_long: bool
    """Whether `diff` compares only the beginnings of long texts."""
    diff: list[DiffPart]
    """Comparison of the texts; a line is a sentence, or a part of a long one."""


def by_sentence(left: str, right: str) -> list[DiffPart]:
    """Return the parts of two texts by sentence. Long texts are cut; see `is_long`.

    Sentences with the same normal form are equal, and shown as in the first text.
    """
    first, second = (sentences(text[:MAX_CHARACTERS])[:MAX_SENTENCES] for text in (left, right))
    return list(DiffBuilder(Matcher()).parts(first, second, normal_text))


def is_long(text: str) -> bool:
    """Return whether `by_sentence` compares only the beginning of a text."""
    return len(text) > MAX_CHARACTERS or len(sentences(text)) > MAX_SENTENCES


def sentences(text: str) -> list[str]:
    """Return the sentences of a text as printable text, long ones split into pieces."""
    pieces: list[str] = []
    for line in text.splitlines():
        for sentence in _ENDS.sub(lambda end: f"{end[0]}\n", line).split("\n"):
            if shown := printable(sentence):
                pieces += [piece.strip() for piece in _PIECES.findall(shown)]
    return pieces


async def compare_posts(
    db: Database,
    config: Config,
    urls: tuple[str, str],
    spider: str | None,
    *,
    by_datasketch: bool = True,
) -> Comparison:
    """Return two posts, their similarity and the verdict. Raises ConfigError.

    urls:          URLs or ids of the posts
    by_datasketch: also return the estimates of the library datasketch, which is slow to import
    """
    scheme = stored_scheme(await db.meta.find_one(META) or {}, config)
    posts = [await _find_post(db, config, url, spider) for url in urls]
    if posts[0]["_id"] == posts[1]["_id"]:
        raise ConfigError(f"both are the same post: {posts[0]['_id']}")
    label = await labels.of_pair(db, posts[0]["_id"], posts[1]["_id"])
    a, b = await _compared_posts(db, scheme, posts)
    # In a thread, because long texts take seconds.
    return await asyncio.to_thread(
        _compared, (posts[0], a), (posts[1], b), scheme, label, by_datasketch=by_datasketch
    )


def _compared(
    first: tuple[Document, ComparedPost],
    second: tuple[Document, ComparedPost],
    scheme: Scheme,
    label: Label | None,
    *,
    by_datasketch: bool,
) -> Comparison:
    from crawler.dedup import compare  # slow: loads the compiled kernels

    a, b = first[1], second[1]
    measured = compare.measure(a, b, by_datasketch=by_datasketch)
    return {
        **copied(Comparison, measured),
        "a": _post_report(*first),
        "b": _post_report(*second),
        "scheme": scheme.name,
        "threshold": scheme.threshold,
        "same_item": compare.is_same_item(a, b),
        "duplicates": compare.are_duplicates(a, b),
        "verdict": compare.verdict(a, b, measured, scheme, label and label["same"]),
        "label": label,
        "is_long": is_long(a.text) or is_long(b.text),
        "diff": by_sentence(a.text, b.text),
    }


async def _find_post(db: Database, config: Config, url_or_id: str, spider: str | None) -> Document:
    """Return the post with a URL or id; raises ConfigError unless there is exactly one."""
    urls = names_of(url_or_id, config) if is_http(url_or_id) else []
    posts = await queries.posts_named(db, url_or_id, urls, spider)
    if not posts:
        near = await nearest(db, url_or_id, ("posts",))
        mean = f"Did you mean {' or '.join(near)}? " if near else ""
        raise ConfigError(f"post not found: {url_or_id}. {mean}scrapy search WORDS finds posts")
    items = {post.get("item") for post in posts}
    if len(posts) > 1 and len(items) == 1 and None not in items:
        # All are sources of one item. The page itself is preferred to the posts of feeds.
        return min(posts, key=lambda post: ("feed" in post, post["_id"]))
    if len(posts) > 1:
        ids = listed([repr(post["_id"]) for post in posts])
        raise ConfigError(f"several posts have the URL {url_or_id}. Give the id of one: {ids}")
    return posts[0]


async def _compared_posts(
    db: Database, scheme: Scheme, posts: list[Document]
) -> list[ComparedPost]:
    """Return the posts with their current sketches and stored signatures."""
    from crawler.dedup.boilerplate import weighed
    from crawler.dedup.compare import ComparedPost  # slow: loads the compiled kernels
    from crawler.storage.dedup import boilerplate
    from crawler.storage.dedup.signatures import Registry

    stored = await queries.signatures_of(db, [post["_id"] for post in posts])
    ids = {row["cluster"] for row in stored.values() if "cluster" in row}
    originals = await queries.originals_of(db, ids)
    sides = []
    for post in posts:
        text, (sketch, sourced) = signatures.compared_text(post), signatures.compared(post, scheme)
        side = ComparedPost(post["_id"], text, sketch, item=post.get("item"))
        if sourced is not None and sketch is not None:
            tables = await boilerplate.tables_of(Registry.of(db, scheme), [sourced.source])
            side = replace(side, sketch=weighed(sketch, sourced, tables[sourced.source]))
        if row := stored.get(post["_id"]):
            cluster = row.get("cluster")
            side = replace(
                side,
                scheme=row["signature_scheme"],
                stored=Sketch.decode(row["sketch"]),
                at=row["at"],
                cluster=cluster,
                original=originals.get(cluster),
            )
        sides.append(side)
    return sides


def _post_report(post: Document, side: ComparedPost) -> PostReport:
    from crawler.dedup.compare import shape_name

    shapes = side.sketch.parts if side.sketch else ()
    own = side.sketch.own if side.sketch else None
    bandings = side.sketch.bandings if side.sketch else ()
    return {
        "id": post["_id"],
        "spider": post.get("spider"),
        "url": post.get("url"),
        "title": post.get("title"),
        "created": signatures.created_of(post),
        "characters": len(side.text),
        "words": len(side.text.split()),
        "boilerplate": round(1 - own.share, 3) if own else 0.0,
        "shingles": [shape_name(shape) for shape in shapes],
        "bandings": [f"{banding.bands} x {banding.rows}" for banding in bandings],
        "compared_at": side.at,
        "changed_since": side.at is not None and side.is_changed,
        "cluster": None if side.cluster is None else str(side.cluster),
        "original": side.original,
        "item": side.item,
    }


async def put_label(
    db: Database, config: Config, posts: tuple[str, str], now: datetime, *, same: bool, by: str
) -> Label:
    """Label two posts by their ids, and apply the label to the stored clusters.

    Raises ConfigError for posts that are not stored, and Busy during a rebuild.
    """
    # Slow: these load the compiled kernels.
    from crawler.storage.dedup.index import as_stored
    from crawler.storage.dedup.labels import label

    async with as_stored(db, config) as registry:
        return await label(db, registry, posts, now, same=same, by=by)


async def labels_of(db: Database, cluster: Cluster) -> dict[str, Label]:
    """Return the labels of a cluster's original and each of its shown copies, by copy."""
    copies = [member["id"] for member in cluster["members"]]
    return await labels.with_post(db, cluster["original"]["id"], copies)
