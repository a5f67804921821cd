"""Base classes of Freshet's commands: usage, errors, JSON, and commands with actions."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from scrapy.commands import ScrapyCommand, ScrapyHelpFormatter
from scrapy.exceptions import UsageError

from crawler.config import Config
from crawler.errors import ConfigError, FreshetError
from crawler.utils.process import collect_again
from crawler.utils.terminal import as_json, complain, guard_logs, print_line

if TYPE_CHECKING:
    from crawler.storage.client import Database

T = TypeVar("T")
# Stands for the help of all actions until somebody reads it, as it needs their modules.
OF_ALL_ACTIONS = "actions:"


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
        """The settings, `-s` included."""
        assert self.settings is not None
        return Config.of(self.settings)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Check the usage, then execute; the user's mistakes become one line and exit code 1."""
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


@dataclass(frozen=True, slots=True)
class Action:
    """An action in the help: a line about it, and an example."""

    what: str
    example: str


# What adds an action's options, and what does its work and returns the exit code, None for 0.
Functions = tuple[
    Callable[[argparse.ArgumentParser], None], Callable[[Config, argparse.Namespace], int | None]
]


class ActionsCommand(FreshetCommand):
    """A command with actions, such as `scrapy feeds import`; each has its own options.

    actions: by name
    usual:   the action that is meant where none is named; None: one has to be

    argparse's subparsers are of no use here: Scrapy's options may stand before and behind an
    action, and subparsers of all actions would import the modules of all of them.
    """

    # The arguments of an action are read into `opts`.
    arguments = ("ACTION",)
    actions: ClassVar[Mapping[str, Action]]
    usual: ClassVar[str | None] = None

    @abstractmethod
    def functions(self, action: str) -> Functions:
        """Import the functions of an action."""

    def syntax(self) -> str:
        """The usage line behind the command's name."""
        names = "|".join(self.actions)
        return f"[options] {names if self.usual is None else f'[{names}]'} [ARG…]"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of all commands. Those of the actions are in the help only."""
        super().add_options(parser)
        help_of_all = self._help_of_all
        parser.epilog = OF_ALL_ACTIONS

        class Help(argparse.RawDescriptionHelpFormatter):
            """Imports the modules of all actions, so only for somebody who reads the help."""

            def add_text(self, text: str | None) -> None:
                super().add_text(help_of_all() if text == OF_ALL_ACTIONS else text)

        parser.formatter_class = Help

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Read the action's words as its own parser does, so that no option goes unnoticed."""
        if self.usual is not None and (not args or args[0].startswith("-")):
            args = [self.usual, *args]
        if not args or args[0] not in self.actions:
            problem = f"{args[0]!r} is none of" if args else "an action is missing:"
            raise UsageError(f"{problem} {', '.join(self.actions)}", print_help=False)
        self.parser_of(args[0]).parse_intermixed_args(args[1:], opts)
        super().run(args[:1], opts)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Carry the action out."""
        opts.settings = self.settings
        _, work = self.functions(args[0])
        self.exitcode = work(self.config, opts) or 0

    def parser_of(self, name: str) -> argparse.ArgumentParser:
        """Return the parser of an action."""
        shown = f"[{name}]" if name == self.usual else name
        parser = _Parser(prog=f"scrapy {self.name} {shown}", add_help=False, allow_abbrev=False)
        add_options, _ = self.functions(name)
        add_options(parser)
        return parser

    def _help_of_all(self) -> str:
        parts = []
        for name, action in self.actions.items():
            usage, _, options = self.parser_of(name).format_help().partition("\n\n")
            usage = " ".join(usage.removeprefix("usage: ").split())
            lines = [line for line in options.splitlines() if line.startswith("  ")]
            parts += [f"{usage}\n  {action.what}", *lines, f"  Example: {action.example}\n"]
        return "\n".join(parts)


class _Parser(argparse.ArgumentParser):
    """Reads the words behind an action, and complains as Scrapy does."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, print_help=False)


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


def with_database(config: Config, work: Callable[[Database], Awaitable[T]]) -> T:
    """Open the database and return what `work` makes of it."""
    # The driver is slow to import: not for --help.
    from crawler.storage.store import opened

    async def run() -> T:
        async with opened(config) as db:
            return await work(db)

    return asyncio.run(run())


def confirm(removed: str, opts: argparse.Namespace, of: str = "") -> None:
    """Ask before something is removed; ConfigError without `--yes` where nobody can answer.

    removed: what goes, such as `3 feeds`
    of:      what it belongs to, for the question
    """
    if opts.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"would remove {removed}: say --yes to mean it")
    question = f"Remove {removed} of {of}?" if of else f"Remove {removed}?"
    if input(f"{question} [y/N] ").strip().lower() != "y":
        raise ConfigError("nothing was removed")


def no_targets(spider: str, stored: list[str]) -> ConfigError:
    """The error of a spider without targets. stored: the spiders with targets."""
    names = ", ".join(stored) or "none; run scrapy crawl first"
    return ConfigError(f"no targets of {spider!r}; spiders with targets: {names}")
