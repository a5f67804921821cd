"""Lists of feeds: collect the feeds that a user listed, and the lines that are not feeds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from crawler.config import Config
from crawler.utils.terminal import without_secrets
from crawler.utils.urls import BLANKS, TRACKING_PARAMETERS, canonical, is_http

# Characters that XML cannot contain, not even escaped.
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# `feed:` URLs, which some browsers and feed readers use.
FEED_SCHEME = re.compile(r"feed:(?://)?(?=https?://)|feed:(?=//)", re.I)
TITLE_CHARACTERS = 500
CATEGORY_CHARACTERS = 200
# Maximum number of categories of one feed. A feed in 100,000 folders is a mistake or an attack.
MAX_FEED_CATEGORIES = 100
MAX_FEEDS = 1_000_000
MAX_REFUSED = 10_000
SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Subscription:
    """A feed in a list.

    url:        canonical URL
    categories: paths such as `News/Local`, each once
    """

    url: str
    title: str | None = None
    site: str | None = None
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry of a list that is not a feed.

    where:  position such as `line 3`, with the title if there is one; empty on the command line
    reason: reason why the URL was refused
    """

    where: str
    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class FeedList:
    """The contents of a list.

    problems: problems of the list as a whole, one line each
    """

    feeds: tuple[Subscription, ...]
    refused: tuple[Refused, ...] = ()
    problems: tuple[str, ...] = ()


class NotAFeedList(Exception):
    """The file is not a list of feeds, or is too long; `str()` is the reason."""


@dataclass(slots=True)
class FeedListBuilder:
    """Collects the feeds of a list, and merges repeated feeds; the first title is used."""

    config: Config
    refused: list[Refused] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _feeds: dict[str, Subscription] = field(default_factory=dict)
    _has_too_many_categories: bool = False

    def take(
        self,
        where: str,
        url: str,
        title: str | None = None,
        site: str | None = None,
        categories: Iterable[str] = (),
    ) -> None:
        """Add a feed, or refuse an invalid URL. Raises NotAFeedList if there are too many feeds.

        where: position in the list, such as `line 3`
        """
        title = tidy(title or "", TITLE_CHARACTERS) or None
        try:
            feed = feed_url(url, self.config)
        except ValueError as error:
            self.refuse(where, url, title, str(error))
            return
        before = self._feeds.get(feed) or Subscription(feed)
        self._feeds[feed] = Subscription(
            feed,
            before.title or (None if title in (url.strip(), feed) else title),
            before.site or site,
            self._united(before.categories, categories),
        )
        if len(self._feeds) > MAX_FEEDS:
            raise NotAFeedList(f"more than {MAX_FEEDS:,} feeds. Import the list in parts")

    def _united(self, categories: tuple[str, ...], named: Iterable[str]) -> tuple[str, ...]:
        for category in filter(None, map(category_of, named)):
            if category not in categories and len(categories) == MAX_FEED_CATEGORIES:
                self._has_too_many_categories = True
            elif category not in categories:
                categories = (*categories, category)
        return categories

    def refuse(self, where: str, url: str, title: str | None, reason: str) -> None:
        """Record an entry that is not a feed. Raises NotAFeedList if there are too many of them."""
        if len(self.refused) == MAX_REFUSED:
            raise NotAFeedList(f"more than {MAX_REFUSED:,} lines are not feeds")
        shown = url if len(url) <= SHOWN_CHARACTERS else url[:SHOWN_CHARACTERS] + "…"
        place = f"{where}, {title}" if title else where
        shown = without_secrets(tidy(shown, SHOWN_CHARACTERS + 1))
        self.refused.append(Refused(place, shown, reason))

    def result(self) -> FeedList:
        """Return the list with everything that was added."""
        problems = tuple(self.problems)
        if self._has_too_many_categories:
            problems += (f"only the first {MAX_FEED_CATEGORIES} categories of a feed are used",)
        return FeedList(tuple(self._feeds.values()), tuple(self.refused), problems)


def feed_url(text: str, config: Config) -> str:
    """Return the canonical URL of a feed. Accepts `feed://HOST` and `feed:https://HOST` as well.

    Raises ValueError for other URLs.
    """
    url = text.strip(BLANKS)
    if scheme := FEED_SCHEME.match(url):
        rest = url[scheme.end() :]
        url = f"http:{rest}" if rest.startswith("//") else rest
    if not url:
        raise ValueError("the URL is empty")
    if len(url) > config.url_characters:
        raise ValueError(f"longer than {config.url_characters} characters")
    if not is_http(url):
        raise ValueError("not an http or https URL")
    if "@" in urlsplit(url).netloc:
        raise ValueError(
            "URLs must not contain a user name or password. Add the feed to a separate spider "
            "(--spider NAME) whose file sets headers = { Authorization = 'Basic ${VARIABLE}' }"
        )
    strip = config.strip_parameters
    url = canonical(url, TRACKING_PARAMETERS if strip is None else strip)
    if not is_http(url) or re.search(r"\s", url):
        raise ValueError("not an http or https URL")
    return url


def tidy(text: str, max_characters: int) -> str:
    """Collapse a text to one line, without characters that XML cannot contain."""
    return " ".join(NOT_IN_XML.sub(" ", text).split())[:max_characters].rstrip()


def category_of(path: str) -> str:
    """Normalize a category: names of folders joined with `/`; empty if no name is left."""
    names = (tidy(name, CATEGORY_CHARACTERS) for name in path.split("/"))
    return "/".join(filter(None, names))[:CATEGORY_CHARACTERS].rstrip("/ ")
