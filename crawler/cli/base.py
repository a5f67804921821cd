"""The base of commands with actions, such as `scrapy feeds import`: each reads its own options."""

from __future__ import annotations

import argparse
import os
import sys
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from scrapy.commands import ScrapyCommand, ScrapyHelpFormatter
from scrapy.exceptions import UsageError

from crawler.config import Config
from crawler.errors import FreshetError
from crawler.utils import time as units
from crawler.utils.garbage import collect_again
from crawler.utils.terminal import as_json, complain, guard_logs, print_line

MAX_PATTERN = 1000


class Help(ScrapyHelpFormatter):
    """No line of an option's help is a heading.

    Scrapy takes each line for one that ends in a colon, and so, at some widths of the terminal, the
    middle of an option's help.
    """

    def _split_lines(self, text: str, width: int) -> list[str]:
        lines = super()._split_lines(text, width)
        return [f"{line} " if line.endswith(":") else line for line in lines]


class HelpWithLines(argparse.RawDescriptionHelpFormatter, Help):
    """The same, with the lines of examples as they are."""


def number(given: str) -> int:
    """A number of at least 1; for argparse."""
    try:
        found = int(given)
    except ValueError:
        found = 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"{given!r} is not a number such as 100")
    return found


def when(given: str) -> datetime | timedelta:
    """A time, or how long ago; for argparse."""
    try:
        return timedelta(hours=units.hours(given))
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(given.strip())
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        said = f"{given!r} is no time such as 2026-01-31, 2026-01-31T08:00Z or 7d"
        raise argparse.ArgumentTypeError(said) from None


def moment(given: datetime | timedelta, now: datetime) -> datetime:
    """The time that `when` was given."""
    if isinstance(given, datetime):
        return given
    try:
        return now - given
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def part(given: str) -> str:
    """A part of a URL, with `*` for any characters; for argparse."""
    if not given.strip("*") or len(given) > MAX_PATTERN:
        raise argparse.ArgumentTypeError(
            f"{given[:50]!r} is not a part of a URL such as /news/*-2026"
        )
    # What a terminal sent in another encoding is no text for MongoDB.
    return given.encode("utf-8", "replace").decode()


class FreshetCommand(ScrapyCommand):
    """A command that works on the database.

    arguments: names of the positional arguments; optional ones in brackets, a last one with `…`
               takes any number
    """

    requires_project = True
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    arguments: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[str]
    has_json: ClassVar[bool] = True

    def syntax(self) -> str:
        """The usage line behind the command's name."""
        return " ".join(["[options]", *self.arguments])

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Scrapy's options, and `--json`."""
        super().add_options(parser)
        parser.formatter_class = Help
        parser.epilog = f"Example: {self.example}"
        if self.has_json:
            parser.add_argument("--json", action="store_true", help="print JSON for machines")

    @property
    def name(self) -> str:
        """The command's name."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def config(self) -> Config:
        """The knobs, `-s` included."""
        assert self.settings is not None
        return Config.of(self.settings)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Check the usage, then do it; the user's mistakes become one line and exit code 1."""
        refuse_left_over(args, self.arguments)
        guard_logs()
        collect_again()
        try:
            self.execute(args, opts)
        except FreshetError as error:
            complain(self.name, error)
            self.exitcode = 1
        except UnicodeEncodeError as error:
            # Bytes of the command line that are no text, on their way into the database.
            complain(self.name, f"{error.object!a} is no text in UTF-8")
            self.exitcode = 1
        except BrokenPipeError:
            # The reader (head, less) has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    @abstractmethod
    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Do the command's work; raises FreshetError."""


def refuse_left_over(args: list[str], arguments: tuple[str, ...]) -> None:
    """Raise UsageError for unknown options, missing or left-over arguments."""
    for arg in args:
        if arg.startswith("-"):
            raise UsageError(f"unknown option {arg}", print_help=False)
    needed = [name for name in arguments if not name.startswith("[")]
    if len(args) < len(needed):
        raise UsageError(f"{needed[len(args)]} is missing", print_help=False)
    endless = bool(arguments) and "…" in arguments[-1]
    if len(args) > len(arguments) and not endless:
        raise UsageError(f"unexpected argument {args[len(arguments)]!r}", print_help=False)


def print_json(value: Any) -> None:
    """Print a value as JSON: times as ISO 8601 in UTC, ids as text."""
    print_line(as_json(value, indent=1))


@dataclass(frozen=True, slots=True)
class Action:
    """What one action is. A module with `options(parser)` and `function(config, opts)`.

    The function returns the exit code, None for 0.
    """

    what: str
    example: str
    module: str
    function: str = "run"
    options: str = "add_options"


class ActionsCommand(FreshetCommand):
    """One action of a table.

    actions: the table
    usual:   the action that is meant where none is named; None: one has to be
    """

    # What an action is given stands in `opts`.
    arguments = ("ACTION",)
    actions: ClassVar[Mapping[str, Action]]
    usual: ClassVar[str | None] = None

    def syntax(self) -> str:
        """The usage line behind the command's name."""
        names = "|".join(self.actions)
        return f"[options] {names if self.usual is None else f'[{names}]'} [ARG…]"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """The options of all actions are told, not taken: each action reads its own."""
        super().add_options(parser)
        told = self._told
        parser.epilog = _OF_ALL_ACTIONS

        class Help(argparse.RawDescriptionHelpFormatter):
            """Tells what the actions are and take, for which their modules are imported."""

            def add_text(self, text: str | None) -> None:
                super().add_text(told() if text == _OF_ALL_ACTIONS else text)

        parser.formatter_class = Help

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Read the action's words as its own parser does, so that no option goes unnoticed."""
        name, words = self._named(args)
        self._parser(name).parse_intermixed_args(words, opts)
        super().run([name], opts)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Do what was asked for."""
        action = self.actions[args[0]]
        opts.settings = self.settings
        function: Any = getattr(import_module(action.module), action.function)
        self.exitcode = function(self.config, opts) or 0

    def _named(self, args: list[str]) -> tuple[str, list[str]]:
        """The action, and the words behind it."""
        if self.usual is not None and (not args or args[0].startswith("-")):
            return self.usual, args
        if not args or args[0] not in self.actions:
            said = f"{args[0]!r} is none of" if args else "an action is missing:"
            raise UsageError(f"{said} {', '.join(self.actions)}", print_help=False)
        return args[0], args[1:]

    def _parser(self, name: str) -> _Parser:
        shown = f"[{name}]" if name == self.usual else name
        parser = _Parser(prog=f"scrapy {self.name} {shown}", add_help=False, allow_abbrev=False)
        action = self.actions[name]
        getattr(import_module(action.module), action.options)(parser)
        return parser

    def _told(self) -> str:
        parts = []
        for name, action in self.actions.items():
            usage, _, options = self._parser(name).format_help().partition("\n\n")
            usage = " ".join(usage.removeprefix("usage: ").split())
            lines = [line for line in options.splitlines() if line.startswith("  ")]
            parts += [f"{usage}\n  {action.what}", *lines, f"  Example: {action.example}\n"]
        return "\n".join(parts)


_OF_ALL_ACTIONS = "actions:"


class _Parser(argparse.ArgumentParser):
    """Reads the words behind an action; mistakes are told as Scrapy tells them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, print_help=False)
