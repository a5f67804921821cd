"""Detect pages that broke rather than changed: lost fields, shrunk lists, login pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from crawler.extract.response import NOTHING
from crawler.extract.site_definition import OPTIONAL_VALUES
from crawler.frontier.run import Run
from crawler.items import FAILED, SEEN, Breakage, Broken, Fetched, Kind, Outcome, Visit
from crawler.storage import alarms, posts
from crawler.storage.client import Document
from crawler.utils.text import listed

LOGIN_PATH = re.compile(r"(?<![a-z])(log-?in|logon|sign[-_]?in|consent|captcha)(?![a-z])")
# Smaller lists often lose this share of their links in an ordinary change.
MIN_LINKS = 10
# A field is usual if at least this share of the newest items of the site has it.
USUAL_SHARE = 0.9
# Minimum number of items that change to the same content in a run before they count as broken.
MIN_SAME = 5
# Maximum number of contents to count, and of fields to remember.
MAX_CONTENTS, MAX_FIELDS = 10_000, 500


class BreakageDetector:
    """Finds broken pages during one run of a process.

    Pages without a change need no database query. The first change and the first lost field of a
    run need one each.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._usual: dict[str, bool] = {}
        self._same: dict[str, int] = {}
        self._known: frozenset[str] | None = None

    async def login(self, fetched: Fetched) -> Broken | None:
        """Return the breakage if a login, consent, captcha or error page replaced a page."""
        target = fetched.target
        is_page = target.kind in (Kind.LIST, Kind.ITEM) and target.content_hash is not None
        if not is_page or fetched.outcome not in (None, *FAILED):
            return None
        if (text := login_text(fetched)) is not None:
            return Broken(Breakage.LOGIN, fetched.at, text)
        digest = changed_digest(fetched)
        if digest is None:
            return None
        if self._known is None:
            run = self._run
            self._known = await run.patience.read(
                lambda: alarms.digests_of_broken(run.db, run.spider)
            )
        if digest not in self._known and self._count_same(digest) < MIN_SAME:
            return None
        text = "the page has the same content as many other pages of the site"
        return Broken(Breakage.LOGIN, fetched.at, text, digest=digest)

    def _count_same(self, digest: str) -> int:
        """Count a changed item by its content; return the number of items with this content."""
        if digest not in self._same and len(self._same) >= MAX_CONTENTS:
            return 0
        self._same[digest] = self._same.get(digest, 0) + 1
        return self._same[digest]

    async def state(self, visit: Visit, old: Document | None) -> Broken | None:
        """Return how the page of a visit is broken, newly or still; None if it is not.

        old: content before a change; None without a change, or if it is not stored
        """
        fetched, before = visit.fetched, visit.fetched.target.broken
        if visit.outcome in FAILED:
            found = all_lost(fetched)
            if found is None or (before is not None and before.how is found.how):
                return before
            return found
        if visit.outcome not in SEEN or visit.outcome is Outcome.NEW:
            return None
        if before is not None and (remaining := still_broken(fetched, before)) is not None:
            return remaining
        if old is None or fetched.selector_digest != fetched.target.selector_digest:
            return None
        if fetched.target.kind is Kind.LIST:
            wrapper = self._run.wrapper
            return shrunk(fetched, old, lambda url: wrapper.match(url).kind is Kind.ITEM)
        if fetched.target.kind is not Kind.ITEM or fetched.content is None:
            return None
        lost = await self._usual_of(
            [
                name
                for name in lost_fields(old, fetched.content)
                # Of pages without selectors. A sold-out product may well lose its offers.
                if name not in OPTIONAL_VALUES or name in self._run.wrapper.fields
            ]
        )
        return broken_selector(fetched, lost) if lost else None

    async def _usual_of(self, names: list[str]) -> list[str]:
        """Return the fields that pages of this site usually have."""
        run = self._run
        room = MAX_FIELDS - len(self._usual)
        if unknown := [name for name in names if name not in self._usual][:room]:
            scheme = run.wrapper.selector_digest(Kind.ITEM)
            found = await run.patience.read(
                lambda: posts.field_coverage(run.db, run.spider, scheme, unknown, with_broken=False)
            )
            self._usual |= {
                name: not each.read or each.share >= USUAL_SHARE for name, each in found.items()
            }
        return [name for name in names if self._usual.get(name)]


def login_text(fetched: Fetched) -> str | None:
    """Return why a fetched page is a login, consent or captcha page; None if it is not one."""
    target, final = fetched.target, fetched.final_url
    if final is not None and final != target.final_url:
        word = LOGIN_PATH.search(urlsplit(final).path.lower())
        if word and not LOGIN_PATH.search(urlsplit(target.url).path.lower()):
            return f"the page redirects to {final}"
    is_other = fetched.stand_in is not None and fetched.stand_in[0] is not Outcome.SHELL
    return fetched.reason if is_other else None


def changed_digest(fetched: Fetched) -> str | None:
    """Return a digest that items share only if they broke; None without a main text or a change.

    Without a main text, a few fields such as the stock may well change to the same values on many
    pages. Pages whose fields are gone are detected without a comparison.
    """
    target = fetched.target
    if target.kind is not Kind.ITEM or fetched.content_hash in (None, target.content_hash):
        return None
    return fetched.content_hash if (fetched.content or {}).get("main_text") else None


def is_replaced(fetched: Fetched, old: Mapping[str, Any]) -> bool:
    """Return whether an item newly redirects to a page that has none of its former values.

    A page that moved keeps its title at least.
    """
    target, new = fetched.target, fetched.content or {}
    is_new_redirect = fetched.final_url not in (None, target.final_url)
    is_comparable = fetched.selector_digest == target.selector_digest
    if target.kind is not Kind.ITEM or not (is_new_redirect and is_comparable):
        return False
    values = {name: value for name, value in old.items() if value not in NOTHING}
    return bool(values) and all(new.get(name) != value for name, value in values.items())


def lost_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the names of fields with a value in the old content but not in the new one."""
    return [name for name, value in old.items() if value not in NOTHING and not _has(new, name)]


def _has(content: Mapping[str, Any], name: str) -> bool:
    return content.get(name) not in NOTHING


def all_lost(fetched: Fetched) -> Broken | None:
    """Return the breakage of an item that was read before and has lost all of its fields."""
    content, target = fetched.content, fetched.target
    if target.kind is not Kind.ITEM or target.content_hash is None:
        return None
    if not content or any(_has(content, name) for name in content):
        return None
    # No names: any field shows that the page works again.
    return replace(broken_selector(fetched, content), fields=())


def broken_selector(fetched: Fetched, lost: Iterable[str]) -> Broken:
    """Return the breakage of a page that lost these fields."""
    names = tuple(lost)[:MAX_FIELDS]
    text = f"nothing found for {listed(names)}, which the page had before"
    return Broken(Breakage.SELECTOR, fetched.at, text, fields=names)


def shrunk(fetched: Fetched, old: Document, is_item: Callable[[str], bool]) -> Broken | None:
    """Return the breakage of a list page that lost at least half of its links to items.

    old: content before the change, with its first MAX_LINKS `links`
    """
    urls, left = old.get("links") or [], items_on(fetched)
    # Most list pages need no match of their old links.
    if len(urls) < max(MIN_LINKS, 2 * left):
        return None
    n_before = sum(map(is_item, urls))
    if n_before < max(MIN_LINKS, 2 * left):
        return None
    text = f"the list page has {left:,} of {n_before:,} links to items"
    return Broken(Breakage.SHRUNK, fetched.at, text, links=n_before)


def items_on(fetched: Fetched) -> int:
    """Return the number of links to items among the stored links of a list page."""
    links = (fetched.links or ())[: posts.MAX_LINKS]
    return sum(link.kind is Kind.ITEM for link in links)


def still_broken(fetched: Fetched, before: Broken) -> Broken | None:
    """Return the breakage that a fetched page still has; None if the page works again."""
    if before.how is Breakage.LOGIN or (before.how is Breakage.SELECTOR and not before.fields):
        # The stored content is the one before the breakage.
        return None
    if fetched.outcome is Outcome.NOT_MODIFIED:
        return before
    if before.how is Breakage.SHRUNK:
        return before if before.links >= 2 * items_on(fetched) else None
    missing = tuple(name for name in before.fields if not _has(fetched.content or {}, name))
    return replace(before, fields=missing) if missing else None
