"""Create warnings at the end of a run: patterns that matched no link, fields that were not found.

Without them, a run that fails to collect anything looks like a run without due targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from crawler.extract.site_definition import Wrapper
from crawler.frontier.lifecycle import ITEMS_READ, WITHOUT
from crawler.items import Kind, LinkCount, LinkCounts, Outcome
from crawler.storage import posts, targets
from crawler.storage.client import Database
from crawler.utils.text import count, listed
from crawler.utils.urls import shapes

EXAMPLES = 2
MAX_FIELDS = 10
# Do not warn of missing fields if the probability that they are missing by chance (such as the
# discount of items that are not on sale) is at least this.
MIN_CHANCE = 0.01
TRY = "try patterns with scrapy wrapper check"
FAILED = {Outcome.ERROR: "failed", Outcome.BLOCKED: "blocked", Outcome.GONE: "gone"}


@dataclass(frozen=True, slots=True)
class RunWarnings:
    """Warnings about a run that has ended.

    lines:         warnings, one line each
    found_nothing: everything was visited, but no item of the site was ever extracted
    """

    lines: list[str] = field(default_factory=list)
    found_nothing: bool = False


async def of_run(
    db: Database,
    wrapper: Wrapper,
    counts: Mapping[str, float],
    links: LinkCounts,
    matched: Mapping[str, int],
) -> RunWarnings:
    """Return the warnings about a run of a site; none for feeds and lists of cells.

    counts:  counts of the run
    links:   examples of links seen in the run
    matched: number of targets per pattern, by the pattern's digest
    """
    if not wrapper.item_pages:
        return RunWarnings()
    lines = [*_skipped_links(counts, links)]
    if counts.get(LinkCount.PAGES) and not counts.get(LinkCount.AMBIGUOUS):
        keys = [
            f"{kind}_pages"
            for kind, name in ((Kind.LIST, LinkCount.LISTS), (Kind.ITEM, LinkCount.ITEMS))
            if not counts.get(name) and not await _has_matched(db, wrapper, kind, matched)
        ]
        if keys:
            lines.append(no_match(keys, counts, links))
    lines += await _missing_fields(db, wrapper, counts)
    everything = counts.get("visits") and not counts.get("due")
    if everything and not await targets.has_items(db, wrapper.name):
        return RunWarnings([*lines, nothing(counts)], found_nothing=True)
    return RunWarnings(lines)


def no_match(keys: Sequence[str], counts: Mapping[str, float], links: LinkCounts) -> str:
    """Return the warning that no link matched the patterns in one or both keys."""
    key = " or ".join(keys)
    pages = count(round(counts[LinkCount.PAGES]), "page")
    seen, foreign = (round(counts.get(n, 0)) for n in (LinkCount.ALL, LinkCount.FOREIGN))
    if seen:
        examples = [shape.example for shape in shapes(links.unmatched)[:EXAMPLES]]
        shown = f", for example {' and '.join(examples)}" if examples else ""
        return f"no link matched {key} ({count(seen, 'link')} seen on {pages}{shown}); {TRY}"
    if foreign:
        example = links.examples.get(LinkCount.FOREIGN)
        shown = f", for example {example}" if example else ""
        return (
            f"no link matched {key} ({count(foreign, 'link')} seen on {pages}, all to other "
            f"hosts{shown}); to follow them, add the hosts to allowed_domains"
        )
    return (
        f"no link matched {key} (no links on {pages}): Freshet does not run scripts in pages; a "
        "sitemap may list the items"
    )


def nothing(counts: Mapping[str, float]) -> str:
    """Return the warning that a run found no items, with the cause if the counts show it."""
    visits, items = round(counts["visits"]), round(counts.get("item pages", 0))
    failed = {word: round(counts[name]) for name, word in FAILED.items() if counts.get(name)}
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


def _skipped_links(counts: Mapping[str, float], links: LinkCounts) -> Iterator[str]:
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


async def _missing_fields(db: Database, wrapper: Wrapper, counts: Mapping[str, float]) -> list[str]:
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
