"""Lists of feeds: what a user has written down, each feed once, and what of it is no feed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from crawler.config import Config
from crawler.utils.terminal import without_secrets
from crawler.utils.urls import BLANKS, TRACKING_PARAMETERS, canonical, is_http

# What XML cannot hold, not even escaped.
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
OF_READERS = re.compile(r"feed:(?://)?(?=https?://)|feed:(?=//)", re.I)
TITLE_CHARACTERS = 500
CATEGORY_CHARACTERS = 200
# A feed in each of a hundred thousand folders is a mistake, or worse.
MAX_CATEGORIES = 100
MAX_FEEDS = 1_000_000
MAX_REFUSED = 10_000
SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Subscription:
    """A feed as a list names it.

    url:        canonical
    categories: paths such as `News/Local`, each once
    """

    url: str
    title: str | None = None
    site: str | None = None
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """What stands where a feed should.

    where: such as `line 3`, and the title if there is one; empty on the command line
    """

    where: str
    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class FeedList:
    """What a list says. problems: what is wrong with the list as a whole, a line each."""

    feeds: tuple[Subscription, ...]
    refused: tuple[Refused, ...] = ()
    problems: tuple[str, ...] = ()


class NotAFeedList(Exception):
    """What is read cannot be a list of feeds, or is too long for one; `str()` says why."""


@dataclass(slots=True)
class FeedListBuilder:
    """Takes what a list names and unites what it names twice; the first title counts."""

    config: Config
    refused: list[Refused] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _feeds: dict[str, Subscription] = field(default_factory=dict)
    _crowded: bool = False

    def take(
        self,
        where: str,
        url: str,
        title: str | None = None,
        site: str | None = None,
        categories: Iterable[str] = (),
    ) -> None:
        """One feed of the list; a URL that is none is refused. Raises NotAFeedList."""
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
            raise NotAFeedList(f"more than {MAX_FEEDS:,} feeds; import it in parts")

    def _united(self, categories: tuple[str, ...], named: Iterable[str]) -> tuple[str, ...]:
        for category in filter(None, map(category_of, named)):
            if category not in categories and len(categories) == MAX_CATEGORIES:
                self._crowded = True
            elif category not in categories:
                categories = (*categories, category)
        return categories

    def refuse(self, where: str, url: str, title: str | None, reason: str) -> None:
        """Something that is no feed. Raises NotAFeedList after very many of them."""
        if len(self.refused) == MAX_REFUSED:
            raise NotAFeedList(f"more than {MAX_REFUSED:,} lines that name no feed")
        shown = url if len(url) <= SHOWN_CHARACTERS else url[:SHOWN_CHARACTERS] + "…"
        place = f"{where}, {title}" if title else where
        shown = without_secrets(tidy(shown, SHOWN_CHARACTERS + 1))
        self.refused.append(Refused(place, shown, reason))

    def result(self) -> FeedList:
        """All that was taken."""
        crowded = f"only the first {MAX_CATEGORIES} categories of a feed count"
        problems = (*self.problems, *([crowded] if self._crowded else ()))
        return FeedList(tuple(self._feeds.values()), tuple(self.refused), problems)


def feed_url(text: str, config: Config) -> str:
    """The canonical URL of a feed; `feed://HOST` and `feed:https://HOST` are understood.

    Raises ValueError, which says what is wrong.
    """
    url = text.strip(BLANKS)
    if opening := OF_READERS.match(url):
        rest = url[opening.end() :]
        url = f"http:{rest}" if rest.startswith("//") else rest
    if not url:
        raise ValueError("no URL")
    if len(url) > config.url_characters:
        raise ValueError(f"longer than {config.url_characters} characters")
    if not is_http(url):
        raise ValueError("no http or https URL")
    if "@" in urlsplit(url).netloc:
        raise ValueError(
            "a URL must not hold a user name or a password. Add the feed for a spider of its own "
            "(--spider NAME), whose file has headers = { Authorization = 'Basic ${VARIABLE}' }"
        )
    strip = config.strip_parameters
    url = canonical(url, TRACKING_PARAMETERS if strip is None else strip)
    if not is_http(url) or re.search(r"\s", url):
        raise ValueError("no http or https URL")
    return url


def tidy(text: str, most: int) -> str:
    """A line of at most `most` characters that XML can hold, without needless white space."""
    return " ".join(NOT_IN_XML.sub(" ", text).split())[:most].rstrip()


def category_of(path: str) -> str:
    """A category as it is kept: names of folders joined by `/`; empty where nothing is left."""
    names = (tidy(name, CATEGORY_CHARACTERS) for name in path.split("/"))
    return "/".join(filter(None, names))[:CATEGORY_CHARACTERS].rstrip("/ ")
