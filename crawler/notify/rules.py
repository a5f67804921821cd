"""Apply the rules of notifications to marked events, and store their messages in the outbox.

Any number of processes may do this concurrently. A crash between two writes repeats an event, but
causes no second message, because the id of a message derives from event, rule and channel.

With `confirm`, a message waits for the next visit of its page. A page may flicker: a price is wrong
for an hour, a server has an outage. The message is sent only if the visit finds the same state, and
dropped otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from crawler.errors import ConfigError, suggestion
from crawler.extract.notification_rules import (
    Condition,
    Content,
    Rule,
    Rules,
    read_keys,
    rules_in,
)
from crawler.items import FAILED, SEEN, Event, Outcome
from crawler.notify.channels import Channel, first_due
from crawler.notify.event_views import MAX_EDITS, MAX_FIELDS, MAX_SHOWN_POSTS
from crawler.notify.stored_channels import all_channels
from crawler.storage import change_events, notification_rules, outbox, sites, target_queries, visits
from crawler.storage.change_events import MarkedEvent
from crawler.storage.client import Database, Document
from crawler.utils.edits import edits
from crawler.utils.text import count, differs, is_price, listed

# Characters of a value that a message shows.
MAX_CHARACTERS = 500
# Maximum number of posts of a visit to which conditions are applied.
MAX_POSTS = 500
ELLIPSIS = "…"
TABLES = ("channels", "rules")
NO_RULES = (
    "no rules, so nothing is sent. Add one in the web app, or write [[rules]] into notify.toml, or "
    "[[notify]] into a site definition"
)
# Visits that found a page or found it gone. An error in between neither confirms nor refutes it.
DECISIVE = (*SEEN, Outcome.GONE)
REFUTED = "the next visit found another state"


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules and channels.

    rules:    rules of `notify.toml` and of the web app
    of_sites: rules of site definitions, by site
    channels: valid ones by name. Messages to others wait until the channel is corrected.
    broken:   the problem of each invalid channel, by name
    repeated: names of rules of the web app that are ignored, because `notify.toml` has them, too
    stored:   names of the rules of the web app
    """

    rules: Rules
    of_sites: Mapping[str, Rules]
    channels: Mapping[str, Channel] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    repeated: tuple[str, ...] = ()
    stored: frozenset[str] = frozenset()

    @classmethod
    async def read(cls, db: Database, file: Path) -> Self:
        """Read `notify.toml`, the rules of the web app, and those of site definitions.

        Rules of site definitions are those of the last runs. Raises ConfigError with file, rule and
        key; an invalid channel is left out.
        """
        keys = read_keys(file)
        if unknown := sorted(keys.keys() - TABLES):
            raise ConfigError(
                f"{file}: unknown key: {unknown[0][:70]!r}. Available: {', '.join(TABLES)}"
            )
        of_file = rules_in(keys.get("rules"), str(file))
        names = {rule.name for rule in of_file}
        of_app = await notification_rules.read(db)
        stored = tuple(rule for rule in of_app if rule.name not in names)
        repeated = tuple(rule.name for rule in of_app if rule.name in names)
        of_sites = await sites.notification_rules(db)
        channels, broken = await all_channels(db, file)
        own = frozenset(rule.name for rule in stored)
        return cls((*of_file, *stored), of_sites, channels, broken, repeated, own)

    @property
    def by_key(self) -> dict[str, Rule]:
        """Return all rules by their keys, which are parts of message ids."""
        own = {
            f"{site}/{rule.name}": rule for site, rules in self.of_sites.items() for rule in rules
        }
        return {rule.name: rule for rule in self.rules} | own

    def problems(self, known_sites: Sequence[str]) -> list[str]:
        """Return a line for each invalid channel, ignored rule, and unknown name in a rule.

        known_sites: sites with targets
        """
        listed = ", ".join(self.channels) or "none"
        lines = list(self.broken.values())
        if self.channels and not self.by_key:
            lines.append(NO_RULES)
        lines += [
            f"rule {name!r} of the web app is ignored: notify.toml has a rule with this name"
            for name in self.repeated
        ]
        for key, rule in self.by_key.items():
            lines += [
                f"rule {key!r}: channel not found: {name!r}. Available: {listed}"
                for name in rule.channels
                if name not in self.channels and name not in self.broken
            ]
            lines += [
                f"rule {key!r}: site without targets: {name!r}"
                for name in rule.sites
                if name not in known_sites
            ]
        return lines

    def of(self, site: str) -> list[tuple[str, Rule]]:
        """Return the rules that may apply to a site, each with its key, which is part of ids."""
        own = [(f"{site}/{rule.name}", rule) for rule in self.of_sites.get(site, ())]
        return [*((rule.name, rule) for rule in self.rules), *own]


@dataclass(frozen=True, slots=True)
class Expansion:
    """The result of applying the rules: the numbers of events and of new messages."""

    events: int
    messages: int


async def expand(db: Database, rules: RuleSet, now: datetime) -> Expansion:
    """Apply the rules to a batch of the oldest marked events. 0 events: none are left."""
    events = await change_events.marked(db)
    messages = [message async for message in messages_of(db, events, rules, now)]
    inserted = await outbox.insert(db, messages, now)
    # The marks go last: until then, a crash repeats everything above.
    await change_events.unmark(db, events)
    return Expansion(len(events), inserted)


async def messages_of(
    db: Database, events: Sequence[MarkedEvent], rules: RuleSet, now: datetime
) -> AsyncIterator[Document]:
    """Yield the messages about events, in the same order, as `outbox.insert` stores them.

    A message to an unknown channel waits until the channel is defined.
    """
    cases = await _cases(db, events, rules)
    rest = iter(cases)
    rows = [case.event.row for case in cases]
    async for row, before, after in change_events.with_contents(db, rows):
        case = next(rest)
        # Read for one visit at a time, because a visit may have MAX_POSTS long posts.
        posts = await visits.posts_of(db, row, MAX_POSTS) if "posts_new" in row else []
        for key, rule, of_rule in case.rules:
            matching = [post for post in posts if rule.holds(None, post)]
            if not (matching if posts else rule.holds(before, after)):
                continue
            data = data_of(before, after) | {"categories": list(case.categories)}
            data |= {name: row[name] for name in ("reason", "failures", "text") if row.get(name)}
            if matching:
                data["posts"] = [
                    {name: _short(post.get(name)) for name in ("title", "url")}
                    for post in matching[:MAX_SHOWN_POSTS]
                ]
                data["posts_matching"] = len(matching)
            for name in dict.fromkeys(rule.channels):
                channel = rules.channels.get(name)
                message: Document = {
                    "_id": outbox.message_id(case.event.key, key, name),
                    "channel": name,
                    "rule": key,
                    "event": str(of_rule),
                    "spider": row["spider"],
                    "target": row["target"],
                    "at": row["at"],
                    "due": now if channel is None else first_due(channel, now),
                    "data": data,
                }
                if channel is not None and channel.confirm:
                    expected = expectation(row, of_rule)
                    message |= {} if expected is None else {"confirm": expected}
                yield message


async def unknown_fields(
    db: Database, events: Sequence[MarkedEvent], rules: RuleSet, only: str | None = None
) -> list[str]:
    """Return a line for each field that a condition names, but no page of the events has.

    Rules that none of the events is about are skipped. only: key of the only rule to check
    """
    fields: defaultdict[str, set[str]] = defaultdict(set)
    cases = await _cases(db, events, rules)
    rest = iter(cases)
    rows = [case.event.row for case in cases]
    async for row, before, after in change_events.with_contents(db, rows):
        posts = await visits.posts_of(db, row, MAX_POSTS) if "posts_new" in row else []
        names = {name for content in (before, after, *posts) for name in content or ()}
        for key, _, _ in next(rest).rules:
            fields[key] |= names
    lines = []
    for key, rule in rules.by_key.items():
        if not fields[key] or only not in (None, key):
            continue
        for condition in map(Condition.parse, rule.when):
            if not condition.names_one_of(fields[key]):
                name = condition.field
                end = suggestion(name, fields[key]) or f". Fields: {listed(sorted(fields[key]))}"
                lines.append(
                    f"rule {key!r}: no page of the last {count(len(events), 'event')} has a field "
                    f"{name!r}{end}"
                )
    return lines


@dataclass(frozen=True, slots=True)
class _Case:
    """An event that rules are about, before their conditions are applied.

    rules: for each rule its key, the rule, and the event of the rule that matches
    """

    event: MarkedEvent
    categories: Sequence[str]
    rules: list[tuple[str, Rule, Event]]


async def _cases(db: Database, events: Sequence[MarkedEvent], rules: RuleSet) -> list[_Case]:
    keys = [f"{event.row['spider']} {event.row['target']}" for event in events]
    categories = await change_events.categories(db, keys)
    cases = []
    for event, key in zip(events, keys, strict=True):
        row, of_page = event.row, categories.get(key, [])
        about = [
            (name, rule, of_rule)
            for name, rule in rules.of(row["spider"])
            if (of_rule := _first_event(row, rule, row["target"], of_page)) is not None
        ]
        if about:
            cases.append(_Case(event, of_page, about))
    return cases


def _first_event(row: Document, rule: Rule, url: str, categories: Sequence[str]) -> Event | None:
    """Return the event of a visit or alarm that a rule is about; None if there is none."""
    for event in _events_in(row):
        if event is Event.FAILING and row.get("failures") != rule.failures:
            continue
        if rule.is_about(event, row["spider"], url, categories):
            return event
    return None


def _events_in(row: Document) -> list[Event]:
    """Return the events of a visit or alarm; for an unmarked visit, the event of its outcome."""
    if "outcome" not in row:
        return [Event(row["event"])]
    if names := row.get("events"):
        return [Event(name) for name in names]
    of_outcomes = {
        Outcome.NEW: Event.NEW, Outcome.CHANGED: Event.CHANGED, Outcome.GONE: Event.GONE,
    }  # fmt: skip
    return [of_outcomes.get(row["outcome"], Event.BACK)]


def data_of(before: Content | None, after: Content | None) -> Document:
    """Return the data of two contents that a message stores, limited in size.

    The data are `title`, `before` and `after` with the same fields, changed fields first, and
    `edits`, the places that differ, with the number of those left out in `more_edits`.
    """
    old, new = before or {}, after or {}
    names = sorted({**new, **old}, key=lambda name: not differs(old.get(name), new.get(name)))
    names = names[:MAX_FIELDS]
    title = new.get("title") or old.get("title")
    found, more = edits(before, after, MAX_EDITS, MAX_CHARACTERS)
    return {
        "title": _short(title) if isinstance(title, str) else None,
        "before": None if before is None else {n: _short(old[n]) for n in names if n in old},
        "after": None if after is None else {n: _short(new[n]) for n in names if n in new},
        "edits": [edit._asdict() for edit in found],
        "more_edits": more,
    }


def _short(value: Any) -> Any:
    """Return a value limited in size: numbers, times and prices unchanged, texts cut."""
    if value is None or isinstance(value, bool | int | float | datetime):
        return value
    if is_price(value):
        return dict(value)
    if isinstance(value, list | tuple):
        return [str(_short(each))[:MAX_CHARACTERS] for each in value[:MAX_FIELDS]]
    text = value if isinstance(value, str) else str(value)
    return f"{text[:MAX_CHARACTERS]}{ELLIPSIS if len(text) > MAX_CHARACTERS else ''}"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Numbers of messages that the next visit confirmed, and that were dropped after it."""

    confirmed: int
    dropped: int


def expectation(row: Document, event: Event) -> Document | None:
    """Return the state that the next visit of a page must find; None if it does not matter.

    Alarms are the result of several visits, and posts of a feed do not disappear, so neither needs
    a confirmation.

    row: document of a visit or alarm
    """
    if "outcome" not in row or "posts_new" in row:
        return None
    if event is Event.FAILING:
        return {"outcomes": [str(outcome) for outcome in FAILED]}
    if event is Event.GONE:
        return {"outcomes": [str(Outcome.GONE)]}
    return {"outcomes": sorted(map(str, SEEN)), "content_hash": row.get("content_hash")}


def is_confirmed(expected: Document, visit: Document) -> bool:
    """Return whether a visit found the expected state. Pure."""
    if visit["outcome"] not in expected["outcomes"]:
        return False
    return "content_hash" not in expected or visit.get("content_hash") == expected["content_hash"]


async def confirm(db: Database, channels: Mapping[str, Channel], now: datetime) -> Confirmation:
    """Decide on all unconfirmed messages whose page was visited since; safe to repeat.

    A message about a page that will not be visited again is sent: nothing can confirm it.
    """
    counts: Counter[str] = Counter()
    async for batch in outbox.unconfirmed(db):
        keys = [f"{message['spider']} {message['target']}" for message in batch]
        times = await target_queries.visit_times(db, keys)
        confirmed: defaultdict[str, list[str]] = defaultdict(list)
        dropped = []
        for message, key in zip(batch, keys, strict=True):
            last, coming = times.get(key, (None, None))
            visit = None
            if last is not None and last > message["at"]:
                visit = await _decisive_visit(db, message)
            if visit is None and coming is not None:
                continue
            if visit is None or is_confirmed(message["confirm"], visit):
                confirmed[message["channel"]].append(message["_id"])
            else:
                dropped.append(message["_id"])
        for name, ids in confirmed.items():
            channel = channels.get(name)
            due = now if channel is None else first_due(channel, now)
            await outbox.record_confirmed(db, ids, due)
            counts["confirmed"] += len(ids)
        await outbox.record_dropped(db, dropped, REFUTED, now)
        counts["dropped"] += len(dropped)
    return Confirmation(counts["confirmed"], counts["dropped"])


async def _decisive_visit(db: Database, message: Document) -> Document | None:
    # An error after the event decides whether a page still fails, but not what it contains.
    outcomes = Outcome if message["event"] == Event.FAILING else DECISIVE
    names = [str(outcome) for outcome in outcomes]
    return await visits.first_after(db, message["spider"], message["target"], message["at"], names)
