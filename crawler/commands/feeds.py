"""`scrapy feeds`: the feeds that are collected; in and out, and how they are doing."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

from scrapy.exceptions import UsageError

from crawler.command import FreshetCommand


@dataclass(frozen=True, slots=True)
class Action:
    """What one action is. A module with `add_options(parser)` and `function(config, opts)`.

    The function returns the exit code, None for 0.
    """

    what: str
    example: str
    module: str
    function: str = "run"


OF_LISTS = "crawler.subscriptions"
ACTIONS = {
    "import": Action(
        "put in the feeds of an OPML file or of a list of URLs",
        "scrapy feeds import subscriptions.opml",
        f"{OF_LISTS}.importing",
    ),
    "add": Action(
        "add a feed, or the feed that a page names",
        "scrapy feeds add https://blog.example/ --category News/Local",
        f"{OF_LISTS}.adding",
    ),
    "export": Action(
        "write all feeds as OPML; import reads it again",
        "scrapy feeds export feeds.opml",
        f"{OF_LISTS}.exporting",
    ),
    "list": Action(
        "how each feed is doing: posts a week, posts it holds (S), visits, losses, trouble",
        "scrapy feeds list --errors",
        f"{OF_LISTS}.listing",
    ),
    "remove": Action(
        "remove feeds with their posts, versions and visits",
        "scrapy feeds remove https://blog.example/feed --yes",
        f"{OF_LISTS}.removing",
    ),
    "push": Action(
        "let hubs tell when there is something new",
        "scrapy feeds push --callback https://public.example/push",
        "crawler.push.serve",
        "serve",
    ),
}
OF_ALL_ACTIONS = "actions:"


class Command(FreshetCommand):
    """One action of the table, with options of its own."""

    arguments = (f"{'|'.join(ACTIONS)}", "[ARG…]")
    example = "scrapy feeds import subscriptions.opml"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Import, add, export, list or remove the feeds that are collected"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """The options of all actions are told, not taken: each action reads its own."""
        super().add_options(parser)
        parser.epilog = OF_ALL_ACTIONS
        parser.formatter_class = _Help

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Read the action's words as its own parser does, so that no option goes unnoticed."""
        if not args or args[0] not in ACTIONS:
            said = f"{args[0]!r} is none of" if args else "an action is missing:"
            raise UsageError(f"{said} {', '.join(ACTIONS)}", print_help=False)
        _parser(args[0]).parse_intermixed_args(args[1:], opts)
        super().run(args[:1], opts)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Do what was asked for."""
        action = ACTIONS[args[0]]
        opts.settings = self.settings
        function = getattr(import_module(action.module), action.function)
        self.exitcode = function(self.config, opts) or 0


class _Parser(argparse.ArgumentParser):
    """Reads the words behind an action; mistakes are told as Scrapy tells them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, print_help=False)


def _parser(name: str) -> _Parser:
    parser = _Parser(prog=f"scrapy feeds {name}", add_help=False, allow_abbrev=False)
    import_module(ACTIONS[name].module).add_options(parser)
    return parser


class _Help(argparse.RawDescriptionHelpFormatter):
    """Tells what the actions are and take, for which their modules are imported."""

    def add_text(self, text: str | None) -> None:
        super().add_text(_told() if text == OF_ALL_ACTIONS else text)


def _told() -> str:
    parts = []
    for name, action in ACTIONS.items():
        usage, _, options = _parser(name).format_help().partition("\n\n")
        usage = " ".join(usage.removeprefix("usage: ").split())
        lines = [line for line in options.splitlines() if line.startswith("  ")]
        parts += [f"{usage}\n  {action.what}", *lines, f"  Example: {action.example}\n"]
    return "\n".join(parts)
