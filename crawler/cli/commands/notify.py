"""`scrapy notify`: deliver notifications, check and preview them, and retry dead letters."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import Action, ActionsCommand, print_json, table, with_database
from crawler.cli.options import add_limit, positive_int
from crawler.config import Config
from crawler.errors import ConfigError, FreshetError
from crawler.utils.terminal import complain, print_line, shortened, stdout, working
from crawler.utils.text import count, listed

if TYPE_CHECKING:
    from crawler.notify.rounds import DeliveryReport, PreviewedMessage
    from crawler.notify.rules import RuleSet
    from crawler.storage.client import Database

NAME = "notify"
DEFAULT_LAST, MAX_LAST = 20, 1000
DEFAULT_LIMIT = 50
# Pause between two rounds of --follow.
FOLLOW_SECONDS = 5.0
# Number of rounds between two readings of the messages that wait for the next visit of their page.
CONFIRM_ROUNDS = 12
# Time for retries while MongoDB is unavailable.
PATIENCE_SECONDS = 30.0
NOTHING = "nothing to deliver now. scrapy notify status shows messages that wait"


class RetryReport(TypedDict):
    """Dead letters that are sent again."""

    retried: int
    """Number of messages that wait for the next delivery again."""


class Command(ActionsCommand):
    """Deliver, test and preview notifications, and retry those that could not be delivered."""

    summary = "Deliver, test and preview notifications about changes, or retry dead letters"
    example = "scrapy notify deliver"
    documents: ClassVar = {
        "scrapy notify deliver --json": "crawler.notify.rounds.DeliveryReport",
        "scrapy notify status --json": "crawler.notify.rounds.NotifyStatus",
        "scrapy notify test CHANNEL --json": "crawler.notify.rounds.SendReport",
        "scrapy notify preview --json": "list[crawler.notify.rounds.PreviewedMessage]",
        "scrapy notify dead --json": "list[crawler.storage.outbox.OutboxMessage]",
        "scrapy notify retry --all --json": RetryReport,
    }

    @property
    def actions(self) -> Mapping[str, Action]:
        """Return the actions."""
        return {
            "deliver": Action(
                "Apply the rules to new events, and send all messages that are due",
                "scrapy notify deliver --follow", run_deliver, deliver_options,
            ),
            "status": Action(
                "Show the messages of each channel by state, and the cause of the last failure",
                "scrapy notify status", run_status,
            ),
            "test": Action(
                "Send a test message to a channel now", "scrapy notify test phone",
                run_test, test_options,
            ),
            "preview": Action(
                "Print the messages that past events would cause, without sending them",
                "scrapy notify preview --rule cheap --last 100", run_preview, preview_options,
            ),
            "dead": Action(
                "List dead letters: messages that are no longer retried", "scrapy notify dead",
                run_dead, dead_options,
            ),
            "retry": Action(
                "Send dead letters again with the next delivery", "scrapy notify retry --all",
                run_retry, retry_options,
            ),
        }  # fmt: skip


def deliver_options(parser: argparse.ArgumentParser) -> None:
    """Add `--follow`."""
    parser.add_argument(
        "--follow", action="store_true",
        help="keep delivering until SIGTERM or SIGINT (default: deliver what is due, then exit)",
    )  # fmt: skip


def run_deliver(config: Config, opts: argparse.Namespace) -> None:
    """Deliver once, or until a signal; raises FreshetError.

    With `--follow`, each round with work is one line on stderr, and the sums are printed at the
    end.
    """
    report, problems = asyncio.run(_follow(config) if opts.follow else _deliver(config))
    if not (report["channels"] or problems or opts.follow):
        raise ConfigError(_no_channels(config))
    if opts.json:
        print_json(report)
    else:
        print_line(_summary(report))


def _no_channels(config: Config) -> str:
    return f"no channels, so nothing is sent. Write [channels.NAME] into {config.notify_file}"


async def _deliver(config: Config) -> tuple[DeliveryReport, list[str]]:
    from crawler.notify import rounds
    from crawler.storage.client import MongoRetry
    from crawler.storage.store import Store

    with working(config.progress, "delivering notifications"):
        store = await Store.open(config)
        try:
            patience = MongoRetry(PATIENCE_SECONDS, store.revive)
            now = config.clock.now
            report, problems = await rounds.deliver_due(store.db, config, patience, now)
        finally:
            await store.close()
    for problem in problems:
        complain(NAME, problem)
    return report, problems


async def _follow(config: Config) -> tuple[DeliveryReport, list[str]]:
    """Run rounds until a signal; return their sums, and the problems of the last round."""
    from crawler.notify import rounds
    from crawler.notify.rules import RuleSet
    from crawler.storage.client import MongoRetry
    from crawler.storage.store import Store

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    sums = rounds.no_deliveries()
    store = await Store.open(config)
    patience = MongoRetry(PATIENCE_SECONDS, store.revive)
    deliverer = rounds.Deliverer(store.db, config, patience, config.clock.now)
    logged, problems = "", list[str]()
    with suppress(FreshetError):
        rules = await patience.read(lambda: RuleSet.read(store.db, config.notify_file))
        if not (rules.channels or rules.broken):
            complain(NAME, f"warning: {_no_channels(config)}")
    try:
        for round_number in itertools.count():
            problems = []
            began = loop.time()
            try:
                report, problems = await deliverer.run_round(
                    FOLLOW_SECONDS, confirms=round_number % CONFIRM_ROUNDS == 0
                )
                rounds.add_to(sums, report)
                # Another process delivers the others, and reports them.
                own_channels = [channel for channel in report["channels"] if not channel["busy"]]
                if (line := _summary(report | {"channels": own_channels})) != NOTHING:
                    print_line(line, error=True)
            except FreshetError as error:
                # The file is being edited, or a server is unavailable: the next round may succeed.
                problems = [str(error)]
            if (lines := "\n".join(problems)) != logged:
                logged = lines
                for problem in problems:
                    complain(NAME, problem)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, began + FOLLOW_SECONDS - loop.time())):
                    await stop.wait()
                    break
        sums["channels"] = rounds.merged(sums["channels"], await deliverer.stop())
    finally:
        await deliverer.cancel()
        await store.close()
    return sums, problems


def _summary(report: DeliveryReport) -> str:
    """Summarize a delivery in one line."""
    parts = []
    if report["events"]:
        messages = count(report["messages"], "new message")
        parts.append(f"{count(report['events'], 'event')}, {messages}")
    decided = {"confirmed": report["confirmed"], "dropped": report["dropped"]}
    parts += [f"{n} {name}" for name, n in decided.items() if n]
    for channel in report["channels"]:
        words = [f"{channel['delivered']} delivered"] if channel["delivered"] else []
        if channel["failed"]:
            words.append(f"{channel['failed']} failed")
        if channel["dead"]:
            words.append(f"{channel['dead']} of them dead-lettered")
        if channel["unavailable"]:
            words.append("unavailable")
        if channel["closed_until"] is not None:
            words.append(f"messages wait until {_minute(channel['closed_until'])} UTC")
        if channel["busy"]:
            words.append("another process delivers")
        if words:
            parts.append(f"{channel['channel']}: {', '.join(words)}")
    return "; ".join(parts) or NOTHING


def run_status(config: Config, opts: argparse.Namespace) -> None:
    """Print the messages of each channel by state."""
    from crawler.notify import rounds

    state = with_database(config, lambda db: rounds.status(db, config.notify_file))
    if opts.json:
        print_json(state)
        return
    for problem in state["problems"]:
        complain(NAME, problem)
    if not state["channels"]:
        print_line(f"no channels. Write [channels.NAME] into {config.notify_file}")
        return
    states = ("waiting", "unconfirmed", "delivered", "dropped", "dead")
    channels = table("channel", *states, "oldest (UTC)", right=states, whole={"oldest (UTC)"})
    for row in state["channels"]:
        numbers = (
            row["waiting"], row["unconfirmed"], row["delivered"], row["dropped"], row["dead"],
        )  # fmt: skip
        channels.add_row(row["channel"], *(f"{n:,}" for n in numbers), _minute(row["oldest"]))
    stdout().print(channels)
    for row in state["channels"]:
        if row["reason"]:
            print_line(f"last failure of {row['channel']}: {row['reason']}")
    print_line(f"{count(state['rules'], 'rule')}, {count(len(state['channels']), 'channel')}")
    if state["oldest_event"] is not None:
        since = _minute(state["oldest_event"])
        print_line(f"events since {since} UTC have no messages yet. Run scrapy notify deliver")


def _minute(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M}"


def test_options(parser: argparse.ArgumentParser) -> None:
    """Add the channel."""
    parser.add_argument("channel", metavar="CHANNEL", help="name of a channel")


def run_test(config: Config, opts: argparse.Namespace) -> int:
    """Send a test message; return 1 if the channel did not accept it."""
    from crawler.notify import rounds
    from crawler.storage.store import opened

    async def send() -> rounds.SendReport:
        async with opened(config) as db:
            return await rounds.send_test(db, config, opts.channel, config.clock.now())

    with working(config.progress, f"sending to {opts.channel}"):
        report = asyncio.run(send())
    if opts.json:
        print_json(report)
    elif not report["delivered"]:
        complain(NAME, f"{opts.channel}: not delivered: {report['reason']}")
    else:
        print_line(f"{opts.channel} accepted the message {report['id']}")
    return 0 if report["delivered"] else 1


def preview_options(parser: argparse.ArgumentParser) -> None:
    """Add `--rule` and `--last`."""
    parser.add_argument(
        "--rule", metavar="NAME",
        help="print only messages of this rule; SITE/NAME for a rule of a site definition",
    )  # fmt: skip
    parser.add_argument(
        "--last", metavar="N", type=positive_int, default=DEFAULT_LAST,
        help=f"number of past events to apply the rules to (default: {DEFAULT_LAST}; "
        f"at most {MAX_LAST:,})",
    )  # fmt: skip


def run_preview(config: Config, opts: argparse.Namespace) -> None:
    """Print the messages that past events would cause, newest first."""
    from crawler.notify import rounds
    from crawler.notify.rules import RuleSet, unknown_fields
    from crawler.storage import change_events, targets

    if opts.last > MAX_LAST:
        raise ConfigError(f"--last: {opts.last} is more than {MAX_LAST:,}")
    now = config.clock.now()

    async def read(db: Database) -> tuple[RuleSet, list[str], list[PreviewedMessage]]:
        rules = await RuleSet.read(db, config.notify_file)
        known = list(rules.by_key)
        if opts.rule is not None and opts.rule not in known:
            available = (
                listed(known) if known else f"none. Write [[rules]] into {config.notify_file}"
            )
            raise ConfigError(f"rule not found: {opts.rule!r}. Available: {available}")
        problems = rules.problems(await targets.spiders(db))
        events = await change_events.newest_of_all(db, opts.last)
        problems += await unknown_fields(db, events, rules, opts.rule)
        return rules, problems, await rounds.preview(db, config, rules, opts.last, opts.rule, now)

    with working(config.progress, "applying the rules"):
        rules, problems, messages = with_database(config, read)
    for problem in problems:
        complain(NAME, problem)
    if opts.json:
        print_json(messages)
        return
    for message in messages:
        at = _minute(message["at"])
        print_line(f"--- {message['channel']}, rule {message['rule']}, event of {at} UTC")
        print_line(f"{message['title']}\n\n{message['text']}")
    if messages:
        print_line(f"{count(len(messages), 'message')}; none was sent")
    elif rules.by_key:
        print_line(
            f"no message: none of the last {count(opts.last, 'event')} matches. "
            f"--last {min(10 * opts.last, MAX_LAST)} applies the rules to more"
        )
    else:
        print_line(f"no rules. Write [[rules]] into {config.notify_file}")


def dead_options(parser: argparse.ArgumentParser) -> None:
    """Add `--channel` and `--limit`."""
    _channel_option(parser, "list only messages of this channel")
    add_limit(parser, "messages", DEFAULT_LIMIT)


def _channel_option(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--channel", metavar="NAME", help=text)


def run_dead(config: Config, opts: argparse.Namespace) -> None:
    """Print dead letters, newest first."""
    from crawler.storage import outbox

    letters = with_database(config, lambda db: outbox.dead_letters(db, opts.channel, opts.limit))
    if opts.json:
        print_json(letters)
        return
    if not letters:
        print_line("no dead letters")
        return
    columns = ("id", "channel", "page", "event of (UTC)", "attempts", "reason")
    dead = table(*columns, whole={"id", "event of (UTC)"})
    for letter in letters:
        dead.add_row(
            letter["id"], letter["channel"], shortened(letter["target"] or letter["spider"]),
            _minute(letter["at"]), str(letter["attempts"]), shortened(letter["reason"]),
        )  # fmt: skip
    stdout().print(dead)
    print_line("scrapy notify retry ID sends one again, scrapy notify retry --all sends all")


def retry_options(parser: argparse.ArgumentParser) -> None:
    """Add the ids, `--all` and `--channel`."""
    parser.add_argument("ids", metavar="ID", nargs="*", help="ids of dead letters")
    parser.add_argument("--all", action="store_true", help="retry all dead letters")
    _channel_option(parser, "retry only messages of this channel; needs --all")


def run_retry(config: Config, opts: argparse.Namespace) -> int:
    """Queue dead letters for delivery again; return 1 if there are none."""
    from crawler.storage import outbox

    if bool(opts.ids) == opts.all:
        raise ConfigError(
            "name dead letters by their ids, or use --all. scrapy notify dead lists them"
        )
    if opts.channel is not None and not opts.all:
        raise ConfigError("--channel needs --all")
    now = config.clock.now()
    ids = opts.ids or None
    n = with_database(config, lambda db: outbox.retry(db, now, ids, opts.channel))
    if opts.json:
        print_json(RetryReport(retried=n))
    elif n:
        print_line(f"{count(n, 'message')} will be sent again. Run scrapy notify deliver")
    else:
        complain(NAME, "no such dead letters. scrapy notify dead lists them")
    return 0 if n else 1
