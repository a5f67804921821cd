"""Text that differs between two requests for a page in a row: find it, and leave it out.

Slogans and quotations drawn at random, A/B tests and lists of related items change with each
request, although nobody edited the page. Words cannot distinguish them from edits: a dish of the
day returns as well. Two requests within seconds can, because both show the same dish. A page may be
edited between the two, so only text that differs in the second requests of two visits is left out.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from crawler.extract.prices import PRICE
from crawler.items import Noise, Place

# Maximum per page; older ones are dropped.
MAX_PLACES, MAX_LINES = 16, 64
# Comparing the lines of a longer text would hold up other pages.
MAX_TEXT_LINES = 20_000
# Maximum number of lines in one place.
MAX_PLACE_LINES = 50
# A page of which a larger share differs is another page on each request. Its changes count.
MAX_SHARE = 0.95
# A change adds CHANGE to the score of a page, a visit without one subtracts 1. So only pages that
# change on more than a third of their visits are requested twice, and each time in vain makes the
# next one rarer.
CHANGE = 2
MAX_WAIT = 96
# Second requests are for all pages of a site until some have been in vain, and then for a share.
FEW_PAGES, MIN_SHARE_OF_PAGES = 5, 0.05
# Pairs of lines that a comparison may take, in about 10 ms.
PAIRS = 4_000_000
# The reason why other content is not a change of its page.
RANDOM = "differs only in random text"
PARTS = ("main_text", "details")
# In the lines of a noise: the lines of the page come in another order on each request. They are
# compared in alphabetical order.
ORDER = "order"
START, END, BETWEEN = "start", "end", ""


def after_visit(noise: Noise, *, changed: bool) -> Noise:
    """Return the noise of a page after a visit without a second request."""
    score = noise.score + CHANGE if changed else noise.score - 1
    return replace(noise, score=min(max(0, score), MAX_WAIT))


def in_vain(noise: Noise) -> Noise:
    """Return the noise of a page after a second request that showed the same text.

    Or after one that was left out, because those for other pages of the site showed the same text.
    """
    return replace(noise, score=0, wait=_longer(noise.wait))


def is_chosen(key: str, noise: Noise, pages: int, random: int) -> bool:
    """Return whether to request a page a second time whose turn it is.

    On a site where no page has random text, second requests cost much and find nothing. A few go
    on, because random text may be added to the site.

    key:    of the target
    pages:  number of pages of the site that were requested twice
    random: how many of them showed other text
    """
    if noise.is_suspicious:
        return True
    share = FEW_PAGES * (1 + random) / (FEW_PAGES + pages - random)
    place = int(_digest(f"{key} {noise.wait}"), 16) / 2**64
    return place < max(share, MIN_SHARE_OF_PAGES)


def is_long(content: Mapping[str, Any]) -> bool:
    """Return whether a main text has too many lines to look for random ones."""
    return str(content.get("main_text") or "").count("\n") >= MAX_TEXT_LINES


def places_in(content: Mapping[str, Any], noise: Noise) -> list[Place]:
    """Return the known places that a content has; text around the other ones was edited."""
    positions = _positions([_digest(line) for line in lines_of(content)])
    return [place for place in noise.places if _span(place, positions) is not None]


def without_noise(content: dict[str, Any], noise: Noise) -> dict[str, Any]:
    """Return the values of a page as they are compared: without its random text."""
    if noise.is_empty or is_long(content):
        return content
    texts = lines_of(content)
    digests = [_digest(line) for line in texts]
    positions = _positions(digests)
    hidden = {i for i, digest in enumerate(digests) if digest in noise.lines}
    for place in noise.places:
        hidden.update(_span(place, positions) or ())
    is_shown = _title_digest(content) not in noise.lines
    kept = [line for i, line in enumerate(texts) if i not in hidden]
    if ORDER in noise.lines:
        kept.sort()
    title = content.get("title") if is_shown else None
    return content | {"title": title, "main_text": "\n".join(kept), "details": None}


def learned(
    first: Mapping[str, Any], second: Mapping[str, Any], noise: Noise, fixed: Sequence[str] = ()
) -> tuple[Noise, list[str]]:
    """Return the noise after a second request, and the new random text, one line each.

    first, second: values of the page, without relative times and counters
    fixed:         values that have selectors, which are always compared

    A place or line that differs for the first time is suspected, and the next change is confirmed,
    too. Places that neither has are forgotten. Prices are never noise, but the order of
    lines with prices may be. If nothing differs, the next second request waits for more changes.
    """
    kept = {*places_in(first, noise), *places_in(second, noise)}
    places = [place for place in noise.places if place in kept]
    lines, shown, suspected = list(noise.lines), list[str](), list[str]()

    def is_confirmed(*keys: str) -> bool:
        known = [*noise.suspected, *noise.lines, *(_key(place) for place in noise.places)]
        suspected.extend(key for key in keys if key not in known)
        return all(key in known for key in keys)

    contents = [lines_of(first), lines_of(second)]
    if set(PARTS).intersection(fixed):
        contents = [[], []]
    elif moved := _moved(*contents):
        if is_confirmed(ORDER):
            lines.append(ORDER)
            shown.append(f"order of the lines, such as {next(iter(moved))}")
        contents = [_without(each, moved) for each in contents]
    for i, j, k, n, old, new in _differences(*contents):
        both = [*old[i:j], *new[k:n]]
        if i < j and k < n:
            before = _digest(old[i - 1]) if i else START
            after = _digest(old[j]) if j < len(old) else END
            place = Place(before, after, max(j - i, n - k))
            # The line before or after a known place may have been edited.
            is_known = any(
                place.before == each.before or place.after == each.after for each in noise.places
            )
            if is_known or is_confirmed(_key(place)):
                places.append(place)
                shown += both
        elif is_confirmed(*map(_digest, both)):
            lines += map(_digest, both)
            shown += both
    titles = [str(each.get("title") or "") for each in (first, second)]
    digests = [digest for each in (first, second) if (digest := _title_digest(each))]
    if titles[0] != titles[1] and "title" not in fixed and is_confirmed(*digests):
        lines += digests
        shown += titles
    is_suspicious = shown or suspected or noise.suspected
    wait = min(MAX_WAIT, noise.wait + 1) if is_suspicious else _longer(noise.wait)
    found = replace(
        noise, places=_newest(places, MAX_PLACES), lines=_newest(lines, MAX_LINES),
        suspected=_newest([*noise.suspected, *suspected], MAX_LINES), wait=wait,
        score=max(0, wait - CHANGE) if suspected else 0, requests=noise.requests + 1,
    )  # fmt: skip
    return found, shown


def _unmatched(old: list[str], new: list[str]) -> list[tuple[int, int, int, int]]:
    from crawler.utils.diff import Matcher  # slow to import

    return [code[1:] for code in Matcher(PAIRS).opcodes(old, new) if not code[0]]


def _moved(old: list[str], new: list[str]) -> Counter[str]:
    """Return the lines in another order, if most lines that differ are only in another order."""
    parts = _unmatched(old, new)
    before = Counter(line for i, j, _, _ in parts for line in old[i:j])
    after = Counter(line for _, _, k, n in parts for line in new[k:n])
    moved = before & after
    others = max((before - moved).total(), (after - moved).total())
    return moved if moved.total() > others else Counter()


def _without(lines: Sequence[str], left_out: Counter[str]) -> list[str]:
    return [line for line in lines if line not in left_out]


def _differences(
    old: list[str], new: list[str]
) -> Iterator[tuple[int, int, int, int, list[str], list[str]]]:
    """Yield the parts that differ and may be random: i:j of the first lines, k:n of the second."""
    parts = _unmatched(old, new)
    differs = sum(len(line) for i, j, k, n in parts for line in (*old[i:j], *new[k:n]))
    if differs > MAX_SHARE * sum(map(len, (*old, *new))):
        return
    for i, j, k, n in parts:
        is_priced = any(map(PRICE.search, (*old[i:j], *new[k:n])))
        if max(j - i, n - k) <= MAX_PLACE_LINES and not is_priced:
            yield i, j, k, n, old, new


def _longer(wait: int) -> int:
    return min(MAX_WAIT, wait * 3 // 2 + 1)


def _key(place: Place) -> str:
    return f"{place.before} {place.after}"


class Passage(NamedTuple):
    """The edited part of a text. name: digest of the lines around it."""

    name: str
    text: str


def passage_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> Passage | None:
    """Return the part between the common start and end of two contents; None without edits."""
    old, new = lines_of(before), lines_of(after)
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-end - 1] == new[-end - 1]:
        end += 1
    edited = new[start : len(new) - end] or old[start : len(old) - end]
    if not edited:
        return None
    first = new[start - 1] if start else START
    last = new[len(new) - end] if end else END
    return Passage(_digest(f"{first}\n{last}"), edited[0])


def _newest(values: Sequence[Any], limit: int) -> tuple[Any, ...]:
    """Return the last distinct values."""
    return tuple(dict.fromkeys(reversed(values)))[:limit][::-1]


def lines_of(content: Mapping[str, Any]) -> list[str]:
    """Return the lines of main text and details, with an empty line between them."""
    text, details = content.get("main_text"), content.get("details")
    lines = [line for line in text.split("\n") if line.strip()] if isinstance(text, str) else []
    return [*lines, BETWEEN, *(details if isinstance(details, list) else ())]


def _digest(line: str) -> str:
    return hashlib.blake2b(line.strip().encode(), digest_size=8).hexdigest()


def _title_digest(content: Mapping[str, Any]) -> str | None:
    title = content.get("title")
    return _digest(f"title: {title}") if isinstance(title, str) and title else None


def _positions(digests: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for i, digest in enumerate(digests):
        found[digest].append(i)
    found[START], found[END] = [-1], [len(digests)]
    return found


def _span(place: Place, positions: Mapping[str, list[int]]) -> range | None:
    """Return the positions of the lines in a place, perhaps none; None if it is not there."""
    after = positions.get(place.after, [])
    for i in positions.get(place.before, ()):
        at = bisect_left(after, i + 1)
        if at < len(after) and after[at] - i - 1 <= place.lines:
            return range(i + 1, after[at])
    return None
