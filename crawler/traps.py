"""Sites without end, such as calendars and facets: which links of a page become no targets."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from urllib.parse import urlsplit

from crawler.items import Kind, Link
from crawler.wrapper import Wrapper

logger = logging.getLogger(__name__)
# What stands for a pattern for the parts of a sitemap index, which meet none.
SITEMAPS = "sitemaps"
OF_KIND = {Kind.LIST: "max_pattern_lists", Kind.ITEM: "max_pattern_items"}
WHY = {
    "max_depth": "is further than {cap:,} pages from the start URLs",
    "max_path_repeats": "has a part of its path more than {cap:,} times",
    "max_pattern_lists": "would be one more than {cap:,} list pages by {pattern!r}",
    "max_pattern_items": "would be one more than {cap:,} items by {pattern!r}",
}


class Traps:
    """The caps of a wrapper in one pass.

    targets:  how many targets each pattern has, by its digest, as far as is known
    left_out: links that were left out
    """

    def __init__(self, wrapper: Wrapper) -> None:
        self.wrapper = wrapper
        self.targets: dict[str, int] = {}
        self.left_out = 0
        self._said: set[tuple[str, str]] = set()

    def sifted(self, links: Iterable[Link], depth: int) -> list[Link]:
        """Those of new links that may become targets at this depth; they count from now on."""
        wanted = []
        for link in links:
            if key := self._over(link, depth):
                self._leave_out(key, link)
            else:
                wanted.append(link)
                if link.pattern:
                    self.targets[link.pattern] = self._count(link) + 1
        return wanted

    def filled(self, links: Iterable[Link]) -> set[str]:
        """Digests of the patterns that would have too many targets with all of these links."""
        new = Counter((link.pattern, link.kind) for link in links if link.pattern)
        return {
            pattern
            for (pattern, kind), n in new.items()
            if (cap := self._cap(OF_KIND[kind])) and self.targets.get(pattern, 0) + n > cap
        }

    def _count(self, link: Link) -> int:
        return self.targets.get(link.pattern or "", 0)

    def _over(self, link: Link, depth: int) -> str | None:
        """The key of the cap that a link is over."""
        of_kind = OF_KIND[link.kind]
        for key, value in (("max_depth", depth), (of_kind, self._count(link) + 1)):
            if (cap := self._cap(key)) and value > cap:
                return key
        most = self._cap("max_path_repeats")
        return "max_path_repeats" if most and repeats(link.url, most) else None

    def _cap(self, key: str) -> int | None:
        cap: int | None = getattr(self.wrapper, key)
        return cap

    def _leave_out(self, key: str, link: Link) -> None:
        """Count a link, and say so once a pass, cap and pattern."""
        self.left_out += 1
        digest = link.pattern or ""
        if (key, digest) in self._said:
            return
        self._said.add((key, digest))
        pattern = self.wrapper.patterns.get(digest, digest)
        why = WHY[key].format(cap=self._cap(key), pattern=pattern)
        logger.warning(
            "%s: %s %s and is left out, like others after it (if they are wanted: %s in the "
            "wrapper, or FRESHET_%s)",
            self.wrapper.name, link.url, why, key, key.upper(),
        )  # fmt: skip


def repeats(url: str, most: int) -> bool:
    """Whether a part of a URL's path stands in it more than `most` times."""
    if url.count("/") <= most:
        return False
    parts = Counter(urlsplit(url).path.removesuffix("/").split("/")[1:])
    return max(parts.values(), default=0) > most
