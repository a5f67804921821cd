"""A site of honest pages mixed with hostile ones, which change between visits.

`/mixed/<hostile>/` links to ten lists with all pages; `/mixed/<hostile>/good/<n>` are the honest
pages. The hostile ones are at `/item/<name>`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

from tests.site.hostile_link import Link, Misbehaviour

HONEST, LISTS = 1000, 10
# A server that is neither close nor overloaded.
ANSWER_SECONDS = 0.1
WORDS = 300
BIG_BYTES = 14_000_000
_visits = itertools.count(1)


def _lines(visit: int) -> str:
    """Return lines that all change, many of them to lines from another position."""
    lines = [f"{n * 7919 % 9973} {(n * visit) % 89}" for n in range(10_000)]
    return f"<h1>Lines</h1><pre>{chr(10).join(lines)}</pre>"


def _repeated(visit: int) -> str:
    """Return two alternating lines, so that each line of a version matches half of the other's."""
    lines = ("a" if (n + visit) % 2 else "b" for n in range(10_000))
    return f"<h1>Lines</h1><pre>{chr(10).join(lines)}</pre>"


def _big(visit: int) -> str:
    return f"<h1>Big</h1><p>{visit} " + "a long text of this page " * (BIG_BYTES // 25) + "</p>"


def _ligatures(visit: int) -> str:
    return f"<h1>Ligatures</h1><p>{visit} {chr(0xFDFA) * 4_000_000}</p>"


def _marks(visit: int) -> str:
    return f"<h1>Marks</h1><p>{visit} a{chr(0x301) * 500_000}{chr(0x316) * 500_000}</p>"


def _escapes(visit: int) -> str:
    return f"<title>\x1b]0;owned\x07\u202e</title><h1>\x1b[2J{visit} [/nope]</h1><p>\x9b31m</p>"


def _changing(text: object) -> Misbehaviour:
    async def answer(link: Link, rest: str) -> None:
        assert callable(text)
        await link.page(text(next(_visits)))

    return answer


# Pages that are different at each visit.
CHANGING: dict[str, Misbehaviour] = {
    "new-lines": _changing(_lines),
    "lines-in-turns": _changing(_repeated),
    "new-big": _changing(_big),
    "new-ligatures": _changing(_ligatures),
    "new-marks": _changing(_marks),
    "new-escapes": _changing(_escapes),
}
# Forty pages of all kinds: bodies, bombs, headers, redirects, and pages that are hard to parse or
# compare.
HOSTILE = (
    *("endless", "drip", "terabytes", "endless-crumbs", "lengths-differ", "endless-trailers"),
    *("bomb-gzip", "bomb-br", "bomb-zstd", "bomb-nested", "bomb-layers", "bomb-members"),
    *("silent", "drip-head", "endless-headers", "huge-header", "cookies", "endless-1xx"),
    *("ever-new", "slow-moves", "to-loopback-2", "to-private", "to-metadata", "to-file"),
    *("deep", "tables", "memory", "attributes", "selectors", "attribute", "brackets"),
    *("few-marks", "marks-by-number", "entities"),
    *CHANGING,
)


class MixedSite:
    """Answer the site's own pages. A tenth of the honest pages change with each visit."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    async def answer(self, link: Link) -> None:
        """Send the list or the honest page at this path."""
        _, _, hostile, *rest = link.path.split("/")
        await asyncio.sleep(ANSWER_SECONDS)
        match rest:
            case ["good", number]:
                self._seen[link.path] += 1
                await link.page(_honest(int(number), self._seen[link.path]))
            case ["list", number]:
                await link.page(_links(_paths(int(hostile), int(number))))
            case _:
                await link.page(_links([f"/mixed/{hostile}/list/{n}" for n in range(LISTS)]))


def _paths(hostile: int, number: int) -> list[str]:
    """Return the paths of a list: its share of honest and hostile pages, mixed."""
    honest = [f"/mixed/{hostile}/good/{n}" for n in range(number, HONEST, LISTS)]
    others = [f"/item/{name}" for name in HOSTILE[:hostile][number::LISTS]]
    paths = honest + others
    random.Random(number).shuffle(paths)
    return paths


def _links(paths: list[str]) -> str:
    return "".join(f'<p><a href="{path}">{path}</a></p>' for path in paths)


def _honest(number: int, visit: int) -> str:
    words = random.Random(number)
    edition = visit if number % 10 == 0 else 1
    text = " ".join(f"word{words.randrange(10_000)}" for _ in range(WORDS))
    return f"<h1>Page {number}</h1><p>Edition {edition} of {text}</p>"
