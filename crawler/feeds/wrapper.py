"""The wrapper of a list of feeds: manners, hours and weights; the feeds themselves are imported."""

from __future__ import annotations

from functools import cached_property
from typing import Self

from pydantic import model_validator

from crawler.items import Kind
from crawler.keys import FeedCycleHours, Patterns, StartUrls
from crawler.wrapper import OF_SITES, Match, Wrapper, digest_of


class FeedsWrapper(Wrapper):
    """Keys as in `Wrapper`, without those that describe one site's pages."""

    name: str = "feeds"
    start_urls: StartUrls = ()
    item_pages: Patterns = ()
    max_interval_hours: FeedCycleHours | None = None

    @model_validator(mode="after")
    def _no_site(self) -> Self:
        if given := [key for key in OF_SITES if key in self.model_fields_set]:
            raise ValueError(f"{given[0]} has no meaning for feeds")
        return self

    def is_own(self, url: str) -> bool:
        """Feeds may be anywhere."""
        return True

    def match(self, url: str) -> Match:
        """Pages of posts are items; feeds are imported, not matched."""
        return Match(Kind.ITEM)

    def scheme(self, kind: Kind) -> str:
        """Digest of what decides a content; of posts it is the version of their reading."""
        return self._post_scheme

    @cached_property
    def _post_scheme(self) -> str:
        return digest_of("posts", READING)


# Raised when posts come to be read differently, so that no document is taken for unchanged.
READING = 1
