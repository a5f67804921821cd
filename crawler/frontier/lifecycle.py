"""Prepare a run before its first request; repair, count and judge it after its last one.

Warnings are about patterns that matched no link and fields that were not found. Without them, a run
that fails to collect anything looks like a run without due targets.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from bson import ObjectId

from crawler.config import Config
from crawler.extract.list_wrappers import definitions
from crawler.extract.site_definition import Wrapper
from crawler.items import FAILED, Kind, LinkCount, LinkCounts, Outcome, Visit
from crawler.storage import (
    cells,
    due,
    identity,
    listings,
    plans,
    posts,
    recovery,
    rereads,
    runs,
    sampling_phases,
    sites,
    target_queries,
    targets,
    visits,
)
from crawler.storage.client import Database
from crawler.storage.dedup import edits
from crawler.storage.dedup.signatures import Registry
from crawler.storage.targets import RemainingTargets
from crawler.utils.text import count, listed
from crawler.utils.urls import shapes

if TYPE_CHECKING:
    from crawler.extract.links import Traps

logger = logging.getLogger(__name__)
# All processes use MongoDB's clock; their readings of it differ by less than this.
MAX_CLOCK_ERROR = timedelta(minutes=1)
Counts = Mapping[str, float]
# Names of counts: items whose fields were extracted, and (before a field's name) items without it.
ITEMS_READ, WITHOUT = "items read", "without "
COPIED_LISTS = "copied lists"
NOT_STORED = frozenset({"missed visits", "dead_lettered", ITEMS_READ, *LinkCount})
SUMMED = ("visits", "bytes", "posts", "edited posts", "missed posts")
EXAMPLES = 2
MAX_FIELDS = 10
# Warn if a run read at least this many new list pages that show only items of other list pages, and
# these are at least half of its list pages.
MANY_COPIED = 50
# Warn if this many items state another form of their URL as canonical.
MANY_VARIANTS = 5
# Do not warn about missing fields if the probability that they are missing by chance (such as the
# discount of items that are not on sale) is at least this.
MIN_CHANCE = 0.01
TRY = "try patterns with scrapy wrapper check"
SIGN_IN = "add headers or cookies to the site definition"
IN_BETWEEN = f"if that page asks visitors to sign in or to accept cookies, {SIGN_IN}"
# A run without a success fails if at least this many pages have failed since the last page that was
# read, in this run or before; on a small site, half of its targets.
MANY_FAILED = 10
WORDS = {
    Outcome.ERROR: "failed", Outcome.BLOCKED: "blocked", Outcome.SHELL: "need JavaScript",
    Outcome.GONE: "gone",
}  # fmt: skip


async def prepare(
    db: Database,
    registry: Registry | None,
    wrapper: Wrapper,
    config: Config,
    started: datetime,
    run: ObjectId | None = None,
    *,
    full: bool,
) -> ObjectId:
    """Prepare a run and return its `_id`; can be repeated.

    run: `_id` of a run to take over from crashed workers
    """
    spider = wrapper.name
    if wrapper.definition is not None:
        await sites.refuse_second_file(db, wrapper.definition)
    if since := await runs.unfinished_since(db, spider):
        # Take over first: processes of the interrupted run may be suspended, not dead.
        await targets.take_over_due(db, spider, started)
        await repair_log(db, registry, spider, since, started)
        await runs.close_unfinished(db, spider, started, but=run)
    await rereads.recover(db, spider)
    is_edited = await sites.is_edited(db, wrapper)
    await plans.finish(db, started, [spider])
    run = run or await runs.begin(db, spider, started)
    await targets.ensure_starts(db, spider, wrapper.start_matches, started, started)
    for old, new in await identity.rename_moved(db, spider, config.gone_confirmations):
        logger.info("%s moved permanently to %s", old, new)
    await cells.define(db, spider, definitions(wrapper), started)
    await sampling_phases.follow(db, spider, started)
    if full:
        await runs.mark_full(db, run)
        await targets.make_all_due(db, spider, started)
        logger.info("%s: full run: all targets are due; the caps of plans are ignored", spider)
    if is_edited:
        retired, selected = await target_queries.retire_unmatched(db, wrapper, started)
        if retired or selected:
            logger.info(
                "%s: site definition changed since the last run; no pattern selects %s any more, "
                "so %s retired; %s selected again",
                spider, count(retired, "page"), "it is" if retired == 1 else "they are",
                f"{count(selected, 'page')} {'is' if selected == 1 else 'are'}",
            )  # fmt: skip
        # The new site definition may fix failed targets, or extract other content.
        failed, read = await targets.make_edited_due(db, wrapper, started)
        if failed or read:
            logger.info(
                "%s: site definition changed since the last run; due again: %s that failed and %s "
                "whose content may differ",
                spider, count(failed, "target"), count(read, "other"),
            )  # fmt: skip
    # Last: if preparation is interrupted, the next run detects the edit again.
    await sites.note(db, wrapper, started)
    return run


async def repair_log(
    db: Database, registry: Registry | None, spider: str, since: datetime, now: datetime
) -> None:
    """Complete or undo visits that crashed workers stored in part."""
    since = max(since - MAX_CLOCK_ERROR, await recovery.logged_since(db, spider))
    await visits.recover(db, spider, since)
    await recovery.undo(db, registry, spider, since, now)
    if registry is not None:
        await edits.recover(db, registry, spider, since, now)


def counts_of(visit: Visit) -> Counts:
    """Return the nonzero counts of one stored visit, by name."""
    fetched = visit.fetched
    kind = f"{fetched.target.kind} pages"
    counts = {"visits": 1.0, str(visit.outcome): 1, kind: 1, "bytes": fetched.size}
    counts["missed visits"] = visit.missed_visits
    if visit.collected is not None:
        counts["posts"] = len(visit.collected.new)
        counts["edited posts"] = len(visit.collected.edited)
        counts["missed posts"] = visit.collected.missed_posts
    if fetched.link_counts is not None:
        counts |= fetched.link_counts.counts
    if fetched.empty_fields is not None:
        counts[ITEMS_READ] = 1
        counts |= {f"{WITHOUT}{name}": 1 for name in fetched.empty_fields}
    return {str(name): value for name, value in counts.items() if value}


def recounted(
    counts: Counts,
    by_outcome: Iterable[Mapping[str, Any]],
    by_kind: Iterable[Mapping[str, Any]],
) -> dict[str, float]:
    """Return the counts of a run, recounted from stored visits.

    Crashed workers may have reported a visit twice or not at all. Counts that are not stored
    (missed visits, dead-lettered pages, links, missing fields) are taken from `counts`.

    by_outcome, by_kind: results of the functions in `storage.visits`
    """
    stored = Counter[str]()
    for row in by_outcome:
        stored[row["_id"]] += row["visits"]
        for name in SUMMED:
            stored[name] += row[name]
    kinds = {f"{row['_id']} pages": row["pages"] for row in by_kind}
    not_stored = {
        name: n for name, n in counts.items() if name in NOT_STORED or name.startswith(WITHOUT)
    }
    return {name: value for name, value in (stored | not_stored | kinds).items() if value}


def whole(counts: Counts) -> Counter[str]:
    """Round all counts; some are estimates."""
    return Counter({name: round(value) for name, value in counts.items()})


@dataclass(frozen=True, slots=True)
class EndState:
    """State of a spider after a run.

    remaining:    state of the spider's targets
    paused_hosts: paused hosts of due targets, and the end of each pause
    never_read:   whether nothing was visited because hosts are paused, and no page of the site was
                  ever read
    """

    remaining: RemainingTargets
    paused_hosts: dict[str, datetime]
    never_read: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a run; all steps can be repeated."""

    db: Database
    registry: Registry | None
    spider: str
    started: datetime
    now: datetime

    async def recount(self, counts: Counts) -> dict[str, float]:
        """Repair visits of crashed workers, and return the run's counts from the change log."""
        db, spider = self.db, self.spider
        await self.repair()
        since = await runs.unfinished_since(db, spider) or self.started
        outcomes = await visits.by_outcome(db, spider, since)
        return recounted(counts, outcomes, await visits.by_kind(db, spider, since))

    async def repair(self) -> None:
        """Repair visits of workers that crashed or lost their connection."""
        await repair_log(self.db, self.registry, self.spider, self.started, self.now)

    async def with_remaining(self, counts: Counts) -> tuple[Counter[str], EndState]:
        """Add the counts of unlisted items, of all targets and of targets that remain due."""
        of_run = dict(counts)
        # Items are marked as unlisted only after all due list pages were read.
        if not await targets.lists_are_due(self.db, self.spider, self.started):
            of_run["unlisted"] = await listings.settle(self.db, self.spider, self.now)
        remaining = await targets.remaining(self.db, self.spider, self.started, self.now)
        of_run["targets"] = remaining.targets
        of_run["due"] = await targets.count_due(self.db, self.spider, self.started)
        paused_hosts = await due.held(self.db, self.spider, self.started, self.now)
        is_paused = bool(paused_hosts) and not of_run.get("visits")
        never_read = is_paused and not await targets.has_read(self.db, self.spider)
        return whole(of_run), EndState(remaining, paused_hosts, never_read)


@dataclass(frozen=True, slots=True)
class RunWarnings:
    """Warnings about a run that has ended.

    lines:         warnings, one line each
    found_nothing: no page could be read, or everything was visited, but no item of the site was
                   ever extracted
    """

    lines: list[str] = field(default_factory=list)
    found_nothing: bool = False


async def warnings_of(
    db: Database,
    wrapper: Wrapper,
    counts: Counts,
    links: LinkCounts,
    traps: Traps,
    example: str = "",
    *,
    gave_up: bool = False,
) -> RunWarnings:
    """Return the warnings about a run; of feeds and lists of cells only if all visits failed.

    Runs that visit a few pages at a time also report a site that is down, once enough pages in a
    row have failed. A run that only retries a few broken pages does not fail.

    counts:  counts of the run
    links:   examples of links seen in the run
    traps:   of this process; has the number of targets per pattern
    example: URL and reason of a failed visit; empty without one
    gave_up: whether the run left targets due because their hosts could not be reached
    """
    lines = await _pattern_warnings(db, wrapper, counts, links, traps.targets)
    many = round(counts.get(COPIED_LISTS, 0))
    if many >= MANY_COPIED and 2 * many >= counts.get(f"{Kind.LIST} pages", 0):
        lines.append(too_many_lists(many, traps.copied_list))
    failed = sum(counts.get(outcome, 0) for outcome in FAILED)
    if failed and failed == counts.get("visits"):
        pages, since = await visits.failing_pages(db, wrapper.name)
        # Those that the run did not try would have failed, too.
        untried = counts.get("due", 0) if gave_up else 0
        if pages + untried >= min(MANY_FAILED, counts.get("targets", 0) / 2):
            line = nothing_read(counts, example, since if pages > failed else None)
            return RunWarnings([*lines, line], found_nothing=True)
    everything = counts.get("visits") and not counts.get("due")
    has_items = not everything or await targets.has_read(db, wrapper.name, Kind.ITEM)
    if wrapper.item_pages and not has_items:
        return RunWarnings([*lines, no_items(counts)], found_nothing=True)
    return RunWarnings(lines)


async def _pattern_warnings(
    db: Database,
    wrapper: Wrapper,
    counts: Counts,
    links: LinkCounts,
    matched: Mapping[str, int],
) -> list[str]:
    """Return the warnings about patterns and selectors that matched nothing."""
    if not wrapper.item_pages:
        return []
    lines = [*_skipped_links(counts, links), *await _variant_urls(db, wrapper, counts, links)]
    if counts.get(LinkCount.PAGES) and not counts.get(LinkCount.AMBIGUOUS):
        keys = [
            f"{kind}_pages"
            for kind, name in ((Kind.LIST, LinkCount.LISTS), (Kind.ITEM, LinkCount.ITEMS))
            if not counts.get(name) and not await _has_matched(db, wrapper, kind, matched)
        ]
        if keys:
            lines.append(no_match(keys, counts, links))
    return [*lines, *await _missing_fields(db, wrapper, counts)]


def no_match(keys: Sequence[str], counts: Counts, links: LinkCounts) -> str:
    """Return the warning that no link matched the patterns in one or both keys."""
    key = " or ".join(keys)
    pages = count(round(counts[LinkCount.PAGES]), "page")
    login = links.examples.get(LinkCount.PAGES)
    redirect = links.examples.get(LinkCount.ALL)
    # A login page that a redirect led to has both.
    sign_in = (
        f"{login} asks for a password; if the site requires one, {SIGN_IN}"
        if login
        else f"{redirect}; {IN_BETWEEN}"
        if redirect
        else ""
    )
    seen, foreign = (round(counts.get(n, 0)) for n in (LinkCount.ALL, LinkCount.FOREIGN))
    if seen:
        examples = [shape.example for shape in shapes(links.unmatched)[:EXAMPLES]]
        shown = f", for example {' and '.join(examples)}" if examples else ""
        line = f"no link matched {key} ({count(seen, 'link')} seen on {pages}{shown}); {TRY}"
        return f"{line}; {sign_in}" if sign_in else line
    if foreign:
        example = links.examples.get(LinkCount.FOREIGN)
        shown = f", for example {example}" if example else ""
        return (
            f"no link matched {key} ({count(foreign, 'link')} seen on {pages}, all to other "
            f"hosts{shown}); to follow them, add the hosts to allowed_domains"
        )
    if sign_in:
        return f"no link matched {key} (no links on {pages}): {sign_in}"
    return (
        f"no link matched {key} (no links on {pages}): Freshet does not run scripts in pages; a "
        "sitemap may list the items, and scrapy feeds add URL collects RSS, Atom and JSON Feed"
    )


def too_many_lists(lists: int, example: str) -> str:
    """Return the warning that most list pages show only items that others show, too."""
    shown = f", for example {example}" if example else ""
    return (
        f"{count(lists, 'new list page')} show only items that other list pages show as well{shown}"
        "; if they sort or filter other lists, exclude them with not_list_pages"
    )


def nothing_read(counts: Counts, example: str, since: datetime | None = None) -> str:
    """Return the warning that all visits of a run failed.

    example: URL and reason of one of them, or ''
    since:   time of the first failure after the last page that was read, if in an earlier run
    """
    refused, failed, shells = (
        round(counts.get(name, 0)) for name in (Outcome.BLOCKED, Outcome.ERROR, Outcome.SHELL)
    )
    shown = f", for example {example.rstrip('.')}" if example else ""
    if since is not None:
        shown += f"; no page could be read since {since:%Y-%m-%d %H:%M} UTC"
    if shells >= max(failed, refused):
        return (
            f"nothing could be read: {count(shells, 'page')} without content in the HTML{shown}. "
            "The content may be in an API that the page calls: see the FAQ about pages that need "
            "JavaScript (docs/faq.md)"
        )
    if not failed:
        return (
            f"nothing could be read: {count(refused, 'visit')} refused{shown}; such pages wait for "
            "an hour or longer. See the FAQ about sites that block the crawler (docs/faq.md)"
        )
    outcomes = f"{count(failed, 'visit')} failed" + (f", {refused} refused" if refused else "")
    hint = "scrapy doctor checks whether the sites can be reached"
    if ": redirects to " in example:
        hint = f"If the site has moved, change start_urls or allowed_domains; {IN_BETWEEN}"
    elif ": not a text page" in example:
        hint = "start_urls have to be HTML pages, sitemaps or JSON"
    if counts.get(ITEMS_READ):
        # The pages were fetched, but have none of the fields.
        hint = "scrapy wrapper check shows what the selectors find"
    return f"nothing could be read: {outcomes}{shown}; later runs try again. {hint}"


def no_items(counts: Counts) -> str:
    """Return the warning that a run found no items, with the cause if the counts show it."""
    visits, items = round(counts["visits"]), round(counts.get("item pages", 0))
    failed = {word: round(counts[name]) for name, word in WORDS.items() if counts.get(name)}
    outcomes = ", ".join(f"{many} {word}" for word, many in failed.items())
    if sum(failed.values()) == visits:
        return f"no items found: {count(visits, 'page')} fetched, none read ({outcomes})"
    if items:
        return f"no items found: {count(items, 'item page')} fetched, none read ({outcomes})"
    return f"no items found on {count(visits, 'page')}"


def never_found(wrapper: Wrapper, name: str, missing: int) -> str:
    """Return the warning that a field was not found on any of `missing` pages."""
    pages = f"nothing found on {missing} of {count(missing, 'page')}"
    if (definition := wrapper.fields.get(name)) is not None:
        return f"field {name}: {pages} (selector {definition.selector})"
    return f"{name}: {pages}"


def _skipped_links(counts: Counts, links: LinkCounts) -> Iterator[str]:
    """Yield warnings about links that matched patterns but were not followed."""
    if many := round(counts.get(LinkCount.AMBIGUOUS, 0)):
        example = links.examples.get(LinkCount.AMBIGUOUS)
        yield (
            f"{count(many, 'link')} matched both list_pages and item_pages"
            + (f", for example {example}" if example else "")
            + "; they are skipped until only one of the two matches"
        )
    if many := round(counts.get(LinkCount.UNFOLLOWED, 0)):
        page = links.examples.get(LinkCount.UNFOLLOWED, "a start URL")
        yield (
            f"{page} is an item because item_pages matches it, so {count(many, 'matching link')} "
            "on it are not followed; if it is a list of items, make list_pages match it or narrow "
            "item_pages"
        )


async def _variant_urls(
    db: Database, wrapper: Wrapper, counts: Counts, links: LinkCounts
) -> list[str]:
    """Return a warning about items that are targets under several forms of their URL."""
    many = round(counts.get(LinkCount.VARIANTS, 0))
    url, _, canonical = links.examples.get(LinkCount.VARIANTS, "").partition(" ")
    if many < MANY_VARIANTS or not canonical:
        return []
    if len(await targets.of_url(db, [url, canonical], wrapper.name)) < 2:
        return []
    names = dict.fromkeys(name for name, _ in parse_qsl(urlsplit(url).query, True))
    stated = dict(parse_qsl(urlsplit(canonical).query, True))
    extra = [name for name in names if name not in stated]
    fix = f"add {listed(extra)} to strip_parameters" if extra else "use not_item_pages"
    return [
        f"{count(many, 'item')} visited under another form of the URL that the page states as "
        f"canonical, for example {url} in addition to {canonical}; to visit each item once, {fix}"
    ]


async def _has_matched(
    db: Database, wrapper: Wrapper, kind: Kind, matched: Mapping[str, int]
) -> bool:
    """Return whether the patterns of a kind matched in an earlier run, or there are none."""
    patterns = wrapper.list_pages if kind is Kind.LIST else wrapper.item_pages
    if not patterns or wrapper.has_matched_start(kind):
        return True
    if any(matched.get(digest) for digest in wrapper.digests_of(patterns)):
        return True
    # An edited pattern may still match URLs that were found with its previous version.
    urls = await targets.some_urls(db, wrapper.name, kind)
    matches = (wrapper.match(url) for url in urls)
    return any(match.kind is kind and match.pattern is not None for match in matches)


async def _missing_fields(db: Database, wrapper: Wrapper, counts: Counts) -> list[str]:
    """Return warnings about fields missing from all items of the run, unless by chance."""
    read = round(counts.get(ITEMS_READ, 0))
    names = [n for n in wrapper.field_names if read and counts.get(WITHOUT + n, 0) >= read]
    if not names:
        return []
    stored = await posts.field_coverage(db, wrapper.name, wrapper.selector_digest(Kind.ITEM), names)
    missing = [
        name
        for name in names
        if not stored[name].found or (1 - stored[name].share) ** read < MIN_CHANCE
    ]
    lines = [never_found(wrapper, name, read) for name in missing[:MAX_FIELDS]]
    if more := missing[MAX_FIELDS:]:
        lines.append(f"fields {listed(more)}: nothing found either")
    return lines
