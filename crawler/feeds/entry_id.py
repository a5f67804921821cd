"""The id of a post: one that stays with it from one fetch of its feed to the next.

A post is named by its guid, else by its link, else by a digest of title and date (of title and
text where it has no date). What cannot name a post, such as the feed's own address, counts as
absent. Where several posts of a document have one name and are not the same, each of them is
named more closely: by its link too, then by title and date, then by all that it says.

That is decided for a name, never for a place: as soon as two posts share a name, neither has it
bare. So the ids of a feed that gives all its posts one guid hold while the document rolls on; had
the first or the oldest of them the bare guid, another post would inherit it with each that leaves.
No rule that sees one document alone can hold as well when posts come to share a name or cease to:
a lone post has to have its bare guid, as feeds move their links some day, and a shared one must
not. That costs one post that counts as new once more, and one that counts as edited, whenever
such a group begins or ends.
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
MAX_NAME_CHARACTERS = 400
SHOWN_CHARACTERS = 60
# What stands for a name where a program had none.
PLACEHOLDERS = frozenset({"none", "null", "nil", "undefined", "nan", "n/a", "#", "-"})
# Four steps make a ladder; who crafts names that collide again gets no more.
MAX_ROUNDS = 8


def named(source: Source, url: str) -> tuple[list[tuple[str, Draft]], list[str]]:
    """The posts of a document, each with its id, and what was wrong with their names.

    url: the feed's own        returns each id once; of posts that are the same, the latest
    """
    # What is the feed's own is no name of a post.
    own = [url, source.site, source.topic, source.title]
    common = frozenset(filter(None, [*own, *map(_canonical, own[:3])]))
    drafts, problems = _without_copies(source.drafts)
    ladders = [_ladder(draft, common) for draft in drafts]
    names, shared = _lowest(ladders)
    if shared:
        shown = [f"{n:,} entries share the id {_short(name)}" for name, n in shared.items()]
        problems.append(f"{listed(shown)}: told apart by link, title and date")
    posts: dict[str, Draft] = {}
    for name, draft in zip(names, drafts, strict=True):
        posts.setdefault(name, draft)
    if lost := len(drafts) - len(posts):
        problems.append(f"{lost:,} entries left out: their ids cannot be told apart")
    return list(posts.items()), problems


def _without_copies(drafts: Sequence[Draft]) -> tuple[list[Draft], list[str]]:
    kept: dict[str, Draft] = {}
    copies: Counter[str] = Counter()
    for draft in drafts:
        link = _canonical(draft.link)
        named_by_itself = draft.guid or link
        key = _digest(draft.guid, link, draft.content(), named_by_itself or _moment(draft))
        if (other := kept.setdefault(key, draft)) is not draft:
            # Which one stays is no matter of places: closer names are made of its date and link.
            kept[key] = max(other, draft, key=lambda copy: (_moment(copy), copy.link or ""))
            copies[named_by_itself] += 1
    shown = [
        f"{n + 1:,} entries "
        + (f"share the id {_short(name)}" if name else "without guid and link")
        for name, n in copies.items()
    ]
    return list(kept.values()), [f"{listed(shown)} and are the same"] if shown else []


def _lowest(ladders: Sequence[Sequence[str]]) -> tuple[list[str], dict[str, int]]:
    """The first name of each ladder that is shared with no other; what was shared first."""
    steps = [0] * len(ladders)
    shared: dict[str, int] = {}
    for _ in range(MAX_ROUNDS):
        names = [ladder[step] for ladder, step in zip(ladders, steps, strict=True)]
        counts = Counter(names)
        for n, name in enumerate(names):
            if counts[name] > 1 and steps[n] + 1 < len(ladders[n]):
                if steps[n] == 0:
                    shared[name] = counts[name]
                steps[n] += 1
        if len(counts) == len(names):
            break
    return [ladder[step] for ladder, step in zip(ladders, steps, strict=True)], shared


def _ladder(draft: Draft, common: frozenset[str]) -> list[str]:
    """The names of a post, each closer than the one before."""
    is_name = draft.guid not in common and draft.guid.lower() not in PLACEHOLDERS
    guid = draft.guid if is_name else ""
    link, fragment = _canonical(draft.link), urldefrag(draft.link or "")[1]
    place = f"{link}#{fragment}" if fragment else link
    if link in common:
        link = place = place if fragment else ""
    name = guid or link or _digest(draft.title, _moment(draft) or draft.text)
    closer = f"{guid} {place}".strip() or name
    moment = _digest(draft.title, _moment(draft))
    ladder = [name, closer, f"{closer} {moment}", f"{closer} {_digest(moment, draft.content())}"]
    half = MAX_NAME_CHARACTERS // 2
    bounded = (
        name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:half]} {_digest(name)}"
        for name in ladder
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


def _short(name: str) -> str:
    return repr(name if len(name) <= SHOWN_CHARACTERS else f"{name[:SHOWN_CHARACTERS]}…")
