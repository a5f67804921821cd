"""Derive ids of posts that stay the same from one fetch of a feed to the next.

The id of a post is its guid, else its link, else a digest of title and date (title and text for
posts without a date). Values that cannot identify a post, such as the URL of the feed, are ignored.
If different posts of a document have the same id, all of them get longer ids: with the link, then
with title and date, then with the whole content.

No post keeps a shared id, not even the first. Otherwise, in a feed that uses one guid for all its
posts, the short id would pass to another post whenever its owner leaves the document. With longer
ids for all posts, the ids remain stable.

Ids can still change when posts begin or cease to share one. This cannot be avoided by looking at a
single document: a post with a unique guid must be identified by the guid only, because feeds change
their links at times, and a post with a shared guid must not. Whenever such a group begins or ends,
one post is treated as new again, and one as edited.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urldefrag

from crawler.feeds.draft import Draft, Source
from crawler.utils.text import listed
from crawler.utils.urls import canonical

DIGEST_BYTES = 16
MAX_ID_CHARACTERS = 400
SHOWN_CHARACTERS = 60
# Values that feed generators write in place of a missing guid.
PLACEHOLDERS = frozenset({"none", "null", "nil", "undefined", "nan", "n/a", "#", "-"})
# Each post has up to four ids. More rounds are only needed for ids made to collide repeatedly.
MAX_ROUNDS = 8


def identified(source: Source, url: str) -> tuple[list[tuple[str, Draft]], list[str]]:
    """Return the posts of a document with their ids, and the problems of the ids.

    url: URL of the feed

    Each id is returned once. Of identical posts, only the latest is returned.
    """
    # Values that belong to the feed do not identify a post.
    own = [url, source.site, source.topic, source.title]
    common = frozenset(filter(None, [*own, *map(_canonical, own[:3])]))
    drafts, problems = _without_copies(source.drafts)
    ids, shared = _shortest_unique([_candidate_ids(draft, common) for draft in drafts])
    if shared:
        shown = [f"{n:,} entries share the id {_short(id_)}" for id_, n in shared.items()]
        problems.append(f"{listed(shown)}: distinguished by link, title and date")
    posts: dict[str, Draft] = {}
    for id_, draft in zip(ids, drafts, strict=True):
        posts.setdefault(id_, draft)
    if left_out := len(drafts) - len(posts):
        problems.append(f"{left_out:,} entries left out: their ids cannot be distinguished")
    return list(posts.items()), problems


def _without_copies(drafts: Sequence[Draft]) -> tuple[list[Draft], list[str]]:
    """Return the posts without identical copies, and a problem that reports the copies."""
    kept: dict[str, Draft] = {}
    copies: Counter[str] = Counter()
    for draft in drafts:
        link = _canonical(draft.link)
        own_id = draft.guid or link
        key = _digest(draft.guid, link, draft.content(), own_id or _moment(draft))
        if (other := kept.setdefault(key, draft)) is not draft:
            # The choice must not depend on the order in the document, because longer ids contain
            # the date and link of the copy that is kept.
            kept[key] = max(other, draft, key=lambda copy: (_moment(copy), copy.link or ""))
            copies[own_id] += 1
    shown = [
        f"{n + 1:,} entries " + (f"share the id {_short(id_)}" if id_ else "without guid and link")
        for id_, n in copies.items()
    ]
    return list(kept.values()), [f"{listed(shown)} and are identical"] if shown else []


def _shortest_unique(candidates: Sequence[Sequence[str]]) -> tuple[list[str], dict[str, int]]:
    """Return the first unique id of each post, and the number of posts by shared first id.

    candidates: possible ids of each post, shortest first
    """
    steps = [0] * len(candidates)
    shared: dict[str, int] = {}
    for _ in range(MAX_ROUNDS):
        ids = [options[step] for options, step in zip(candidates, steps, strict=True)]
        counts = Counter(ids)
        for n, id_ in enumerate(ids):
            if counts[id_] > 1 and steps[n] + 1 < len(candidates[n]):
                if steps[n] == 0:
                    shared[id_] = counts[id_]
                steps[n] += 1
        if len(counts) == len(ids):
            break
    return [options[step] for options, step in zip(candidates, steps, strict=True)], shared


def _candidate_ids(draft: Draft, common: frozenset[str]) -> list[str]:
    """Return the possible ids of a post, each more specific than the one before.

    common: values that do not identify a post
    """
    is_usable = draft.guid not in common and draft.guid.lower() not in PLACEHOLDERS
    guid = draft.guid if is_usable else ""
    link, fragment = _canonical(draft.link), urldefrag(draft.link or "")[1]
    full_link = f"{link}#{fragment}" if fragment else link
    if link in common:
        link = full_link = full_link if fragment else ""
    short = guid or link or _digest(draft.title, _moment(draft) or draft.text)
    longer = f"{guid} {full_link}".strip() or short
    dated = _digest(draft.title, _moment(draft))
    ids = [short, longer, f"{longer} {dated}", f"{longer} {_digest(dated, draft.content())}"]
    half = MAX_ID_CHARACTERS // 2
    bounded = (
        id_ if len(id_) <= MAX_ID_CHARACTERS else f"{id_[:half]} {_digest(id_)}" for id_ in ids
    )
    return list(dict.fromkeys(bounded))


def _canonical(link: str | None) -> str:
    try:
        return canonical(link) if link else ""
    except ValueError:
        return link or ""


def _moment(draft: Draft) -> str:
    return draft.stated.isoformat() if draft.stated else ""


def _digest(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _short(id_: str) -> str:
    return repr(id_ if len(id_) <= SHOWN_CHARACTERS else f"{id_[:SHOWN_CHARACTERS]}…")
