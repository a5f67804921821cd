"""What a replan is to plan: pages and feeds are planned apart, each by their own policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.replanning.wishes import Wish

PAGES, FEEDS = "pages", "feeds"
KINDS = (PAGES, FEEDS)


@dataclass(frozen=True, slots=True)
class Order:
    """What the user has asked for.

    wish:    what the options say      spiders: None: all      kind: one of KINDS, None: both
    shared:  pages and feeds share one budget
    """

    wish: Wish
    spiders: list[str] | None = None
    kind: str | None = None
    shared: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """The pages or the feeds of some spiders, and what is asked for them.

    everything: whether these are all spiders of the kind      as_it_is: no option asks for anything
    """

    kind: str
    spiders: list[str]
    wish: Wish
    everything: bool
    as_it_is: bool


def parts_of(
    order: Order, known: Sequence[str], feeds: Sequence[str], config: Config
) -> list[Part]:
    """The parts of an order, pages first; ConfigError where it is not clear or cannot be.

    known: all spiders that have targets     feeds: those of them that have feeds
    """
    _check_spiders(order, known)
    chosen = [name for name in known if order.spiders is None or name in order.spiders]
    of = {FEEDS: [n for n in chosen if n in feeds], PAGES: [n for n in chosen if n not in feeds]}
    kinds = [kind for kind in KINDS if of[kind] and order.kind in (None, kind)]
    if order.kind is not None and not kinds:
        raise ConfigError(f"--kind {order.kind}: there are none (scrapy targets shows what is)")
    if len(kinds) > 1 and order.wish.asks and not order.shared:
        raise ConfigError(
            "pages and feeds are planned apart: say what is meant (--kind pages, --kind feeds or "
            "--spider NAME), or give them one budget (--shared-budget)"
        )
    return [_part(order, kind, of[kind], known, feeds, config) for kind in kinds]


def _part(
    order: Order,
    kind: str,
    spiders: list[str],
    known: Sequence[str],
    feeds: Sequence[str],
    config: Config,
) -> Part:
    wish = order.wish.over(Wish.of_config(config, feeds=kind == FEEDS))
    wish.check(feeds=kind == FEEDS)
    there = [name for name in known if (name in feeds) == (kind == FEEDS)]
    return Part(kind, spiders, wish, len(spiders) == len(there), not order.wish.asks)


def _check_spiders(order: Order, known: Sequence[str]) -> None:
    if unknown := sorted(set(order.spiders or ()) - set(known)):
        names = ", ".join(known) or "none; run scrapy crawl first"
        raise ConfigError(f"no targets of {unknown[0]!r}; spiders with targets: {names}")
