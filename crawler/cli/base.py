"""Base classes of commands: usage, errors, JSON with its schemas, actions, and single pages."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import re
import sys
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, overload

from scrapy import Request, Spider
from scrapy.commands import ScrapyCommand, ScrapyHelpFormatter
from scrapy.exceptions import UsageError
from scrapy.settings import BaseSettings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.conf import arglist_to_dict
from scrapy.utils.datatypes import SequenceExclude
from scrapy.utils.misc import load_object
from scrapy.utils.spider import DefaultSpider, spidercls_for_request
from w3lib.url import is_url

from crawler.config import Config
from crawler.errors import (
    ConfigError,
    FreshetError,
    no_targets,
    suggestion,
    suggestion_or_all,
)
from crawler.utils.process import collect_again
from crawler.utils.terminal import as_json, complain, escape_unencodable, guard_logs, print_line

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from rich.table import Table
    from twisted.python.failure import Failure

    from crawler.storage.client import Database

T = TypeVar("T")
ALL_BUT_REDIRECTS = SequenceExclude(range(300, 400))
# In a narrower terminal, the figures of a table would leave no space for names and reasons.
MIN_FIGURES_COLUMNS = 72
# The beginning of a value that is not an option, such as `-5/day`.
NEGATIVE_VALUE = re.compile(r"-\d")
LOG_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")


class Help(ScrapyHelpFormatter):
    """Help formatter that keeps Scrapy from underlining lines of an option's help as headings.

    Scrapy formats every line that ends in a colon as a heading. At some widths of the terminal, a
    line in the middle of an option's help ends in one.
    """

    def _split_lines(self, text: str, width: int) -> list[str]:
        lines = super()._split_lines(text, width)
        return [f"{line} " if line.endswith(":") else line for line in lines]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        # A command with a line break, for example in the middle of --dry-run, cannot be pasted.
        return text if text.startswith("Example: ") else super()._fill_text(text, width, indent)


class HelpWithLines(argparse.RawDescriptionHelpFormatter, Help):
    """Help formatter that also prints the examples at the end without rewrapping them."""


def take_negative_values(parser: argparse.ArgumentParser) -> None:
    """Take words such as `-5/day` as values of options, whose types explain what is wrong."""
    parser._negative_number_matcher = NEGATIVE_VALUE


class FreshetCommand(ScrapyCommand):
    """Base class of commands that use the database.

    arguments: names of the positional arguments. Optional ones are in brackets; a last one that
               contains `…` takes any number of values.
    summary:   description for `scrapy -h`
    """

    requires_project = True
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    arguments: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str]
    example: ClassVar[str]
    # Types of the documents that `--json` prints, by an example of the command line. A type is a
    # TypedDict or a list of TypedDicts, or the path of one in a module that is imported only for
    # the reference. Each field is described by the docstring below it.
    documents: ClassVar[Mapping[str, Any]]
    # Names of all options, to suggest one.
    options: Iterable[str] = ()

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return self.summary

    def syntax(self) -> str:
        """Return the part of the usage line after the command's name."""
        return " ".join(["[options]", *self.arguments])

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add Scrapy's options and `--json`."""
        super().add_options(parser)
        parser.formatter_class = Help
        parser.epilog = f"Example: {self.example}"
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")
        take_negative_values(parser)
        self.options = parser._option_string_actions

    @property
    def name(self) -> str:
        """Return the command's name."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def config(self) -> Config:
        """Return the settings, including those set by `-s`."""
        assert self.settings is not None
        return Config.of(self.settings)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Check the usage, then execute; an expected error is one line and exit code 1."""
        refuse_left_over(args, self.arguments, self.options)
        guard_logs()
        escape_unencodable()
        collect_again()
        try:
            self.execute(args, opts)
            # None if the command was started without a standard output.
            if out := sys.stdout:
                out.flush()
        except FreshetError as error:
            complain(self.name, error)
            self.exitcode = 1
        except UnicodeEncodeError as error:
            # Undecodable bytes of the command line were about to be stored in the database.
            complain(self.name, f"{error.object!a} is not valid UTF-8")
            self.exitcode = 1
        except BrokenPipeError:
            # The reader (head, less) closed the pipe.
            _discard_output()
        except OSError as error:
            # Errors of files are reported with their names, so this one is of standard output.
            if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _discard_output()
            complain(self.name, f"standard output: {error.strerror}")
            self.exitcode = 1

    @abstractmethod
    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run the command; raises FreshetError."""

    def json_types(self) -> dict[str, Any]:
        """Import and return the types of `documents`; `schema_of` returns their schemas."""
        types: dict[str, Any] = {}
        for line, kind in self.documents.items():
            types[line] = kind
            if isinstance(kind, str):
                path = kind.removeprefix("list[").removesuffix("]")
                named = load_object(path)
                types[line] = named if path == kind else GenericAlias(list, named)
        return types


def _discard_output() -> None:
    """Discard what is still to be written to standard output, or the flush at exit fails, too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a command: its help, its options, and the function that runs it.

    summary:     one line
    run:         runs the action and returns its exit code; None is 0
    add_options: adds the arguments and options to the parser of the action
    """

    summary: str
    example: str
    run: Callable[[Config, argparse.Namespace], int | None]
    add_options: Callable[[argparse.ArgumentParser], object] = lambda parser: None


class ActionsCommand(FreshetCommand):
    """Base class of commands with actions, such as `scrapy feeds import`.

    Each action has its own options. They are not argparse's subparsers because Scrapy's options may
    come before and after the action.

    default_action: the action to run if none is given; None if an action is required
    """

    # The arguments of an action are parsed into `opts`.
    arguments = ("ACTION",)
    default_action: ClassVar[str | None] = None

    @property
    @abstractmethod
    def actions(self) -> Mapping[str, Action]:
        """Import the modules of the actions, and return the actions by name."""

    def syntax(self) -> str:
        """Return the part of the usage line after the command's name."""
        names = "|".join(self.actions)
        return f"[options] {names if self.default_action is None else f'[{names}]'} [ARG…]"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that all commands share; `run` parses those of the action."""
        super().add_options(parser)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parts = []
        for name, action in self.actions.items():
            usage, _, options = self.parser_of(name).format_help().partition("\n\n")
            usage = " ".join(usage.removeprefix("usage: ").split())
            lines = [line for line in options.splitlines() if line.startswith("  ")]
            parts += [f"{usage}\n  {action.summary}", *lines, f"  Example: {action.example}\n"]
        parser.epilog = "\n".join(parts)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Parse the arguments after the action with its own parser, then run the action."""
        if self.default_action is not None and (not args or args[0].startswith("-")):
            args = [self.default_action, *args]
        if not args or args[0] not in self.actions:
            problem = f"unknown action {args[0]!r}" if args else "ACTION is missing"
            names = list(self.actions)
            raise usage_error(problem + suggestion_or_all(args[0] if args else "", names))
        self.parser_of(args[0]).parse_intermixed_args(args[1:], opts)
        super().run(args[:1], opts)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run the action."""
        opts.settings = self.settings
        self.exitcode = self.actions[args[0]].run(self.config, opts) or 0

    def parser_of(self, action: str) -> argparse.ArgumentParser:
        """Return the parser of an action's arguments and options."""
        shown = f"[{action}]" if action == self.default_action else action
        parser = _ActionParser(
            prog=f"scrapy {self.name} {shown}", add_help=False, allow_abbrev=False
        )
        self.actions[action].add_options(parser)
        take_negative_values(parser)
        return parser


class _ActionParser(argparse.ArgumentParser):
    """Parser of an action's arguments that reports errors the way Scrapy does."""

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized arguments: -"):
            message = unknown_option(unknown[0], self._option_string_actions)
        raise usage_error(message)


def usage_error(problem: str) -> UsageError:
    """Return an error about the arguments, to print without the whole help; exit code 2."""
    return UsageError(problem, print_help=False)


def unknown_option(option: str, options: Iterable[str]) -> str:
    """Return the error about an unknown option. options: valid ones, to suggest one of them."""
    return f"unknown option {option}{suggestion(option.partition('=')[0], options)}"


def refuse_left_over(
    args: list[str], arguments: tuple[str, ...], options: Iterable[str] = ()
) -> None:
    """Raise UsageError for unknown options, and for missing or unexpected arguments.

    options: names to suggest in place of an unknown one
    """
    for arg in args:
        if arg.startswith("-"):
            raise usage_error(unknown_option(arg, options))
    needed = [name for name in arguments if not name.startswith("[")]
    if len(args) < len(needed):
        raise usage_error(f"{needed[len(args)]} is missing")
    endless = bool(arguments) and "…" in arguments[-1]
    if len(args) > len(arguments) and not endless:
        raise usage_error(f"unexpected argument {args[len(arguments)]!r}")


@overload
def option(parse: Callable[[str], T], text: str, name: str) -> T: ...
@overload
def option(parse: Callable[[str], T], text: str | None, name: str) -> T | None: ...
def option(parse: Callable[[str], T], text: str | None, name: str) -> T | None:
    """Parse the value of an option, if it is given.

    Raises ConfigError with the option's name if `parse` raises ValueError.
    """
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def print_json(value: Any) -> None:
    """Print a value as JSON, with times as ISO 8601 in UTC and ids as text."""
    print_line(as_json(value, indent=1))


def table(*columns: str, right: Collection[str] = (), whole: Collection[str] = ()) -> Table:
    """Return a table with these headings. right: columns of numbers; whole: never wrapped, too."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        is_number = name in right
        made.add_column(
            name, justify="right" if is_number else "left", no_wrap=is_number or name in whole
        )
    return made


def with_database(
    config: Config, work: Callable[[Database], Awaitable[T]], *, prepares: bool = True
) -> T:
    """Open the database and return the result of `work`. prepares: as in `Store.open`."""
    # The driver is slow to import, and --help does not need it.
    from crawler.storage.store import opened

    async def run() -> T:
        async with opened(config, prepares=prepares) as db:
            return await work(db)

    return asyncio.run(run())


def confirm(removed: str, opts: argparse.Namespace, of: str = "") -> None:
    """Ask for confirmation, unless `--yes` is given.

    Raises ConfigError if the user declines, or if there is no terminal to ask on.

    removed: the data to delete, such as `3 feeds`
    of:      the URL or name that the data belong to, for the question
    """
    if opts.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"this deletes {removed}. Re-run with --yes to confirm")
    question = f"Delete {removed} of {of}?" if of else f"Delete {removed}?"
    if input(f"{question} [y/N] ").strip().lower() != "y":
        raise ConfigError("canceled; nothing was deleted")


async def spiders_of(db: Database, spider: str | None) -> list[str]:
    """Return the given spider, or all spiders with targets; raises ConfigError if it has none."""
    from crawler.storage import targets

    stored = await targets.spiders(db)
    if not stored:
        raise ConfigError("no site has targets yet. Run scrapy crawl NAME first")
    if spider is None:
        return stored
    if spider not in stored:
        raise no_targets(spider, stored)
    return [spider]


async def require_posts(db: Database, spider: str) -> None:
    """Raise ConfigError if a spider has no posts, with the spiders that have some."""
    from crawler.storage import search

    if spider not in (stored := await search.spiders(db)):
        available = ", ".join(stored) or "none. Run scrapy crawl first"
        raise ConfigError(f"no posts of {spider!r}. Spiders with posts: {available}")


def adapter_of(json_type: Any) -> TypeAdapter[Any]:
    """Return the validator of a list of documents, which rejects unknown fields.

    A list, because pydantic does not accept a configuration for a TypedDict itself.

    json_type: from `FreshetCommand.json_types`
    """
    from pydantic import ConfigDict, TypeAdapter

    strict = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)
    return TypeAdapter(list[json_type], config=strict)


def schema_of(json_type: Any) -> dict[str, Any]:
    """Return the JSON Schema of a document, with the definitions of the documents in it."""
    schema = adapter_of(json_type).json_schema()
    document: dict[str, Any] = schema["items"]
    definitions: dict[str, Any] = schema.get("$defs", {})
    if (reference := document.get("$ref")) is not None:
        document = definitions.pop(reference.rpartition("/")[2])
    return document | ({"$defs": definitions} if definitions else {})


def check_log_level(settings: BaseSettings) -> None:
    """Raise ConfigError for an unknown log level, which Scrapy would report with a traceback."""
    level = settings["LOG_LEVEL"]
    if not isinstance(level, int) and level not in logging.getLevelNamesMapping():
        raise ConfigError(f"--loglevel: unknown level {level!r}. Use {', '.join(LOG_LEVELS)}")


class Inspection(ScrapyCommand):
    """Base class of Scrapy's commands for single pages: `shell`, `fetch`, `view` and `parse`.

    They fetch a page as a spider would, but start no crawl run and leave the database unchanged.
    URLs that the user types may lead to private addresses, which are refused during a crawl.

    Invalid arguments and failed requests are one-line errors with exit code 1.
    """

    example: ClassVar[str]

    @property
    def name(self) -> str:
        """Return the command's name."""
        return type(self).__module__.rpartition(".")[2]

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add Scrapy's options, an example, and `-a` if Scrapy has not added it."""
        super().add_options(parser)
        parser.formatter_class = Help
        parser.epilog = f"Example: {self.example}"
        if "-a" not in parser._option_string_actions:
            parser.add_argument(
                "-a",
                dest="spargs",
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help="set spider argument (may be repeated)",
            )

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Check the spider and its arguments before the crawler starts."""
        from spiders.wrapper import INSPECTS, WrapperSpider

        super().process_options(args, opts)
        assert self.settings is not None
        self.settings.set(INSPECTS, True, priority="cmdline")
        if not isinstance(opts.spargs, dict):
            opts.spargs = spider_arguments(opts.spargs)
        try:
            check_log_level(self.settings)
            # Scrapy would report a module that cannot be imported with a traceback.
            get_spider_loader(self.settings)
            kind = self.spider_class(args, opts)
            if issubclass(kind, WrapperSpider):
                kind.read_wrapper(kind.read_arguments(opts.spargs))
        except FreshetError as error:
            complain(self.name, error)
            sys.exit(1)

    def spider_class(self, args: list[str], opts: argparse.Namespace) -> type[Spider]:
        """Return the spider that `--spider` names, else the only one that handles the URL.

        If no spider or several handle the URL, it returns Scrapy's default spider. Raises
        ConfigError for an unknown name or an invalid URL.
        """
        assert self.settings is not None
        if opts.spider:
            return spider_named(self.settings, opts.spider)
        if not args or not is_url(args[0]):
            return DefaultSpider
        try:
            request = Request(args[0])
        except ValueError as error:
            raise ConfigError(f"{args[0]}: not a valid URL: {error}") from None
        return spidercls_for_request(get_spider_loader(self.settings), request, DefaultSpider)

    def typed_request(self, spider: Spider, url: str, *, redirect: bool = True) -> Request:
        """Return the request for a URL that the user typed.

        It has the headers and cookies of the site definition. Responses of any status are accepted.

        redirect: follow redirects
        """
        from crawler.fetch.guard import TYPED
        from crawler.items import Kind, Target
        from spiders.wrapper import WrapperSpider

        if isinstance(spider, WrapperSpider):
            request = spider.request(Target(spider.name, url, Kind.ITEM))
            request = request.replace(callback=None)
        else:
            request = Request(url, dont_filter=True)
        request.meta[TYPED] = url
        request.meta["handle_httpstatus_list"] = ALL_BUT_REDIRECTS
        request.meta["handle_httpstatus_all"] = not redirect
        request.errback = self.failed
        return request

    def failed(self, failure: Failure) -> None:
        """Print why the request failed, and set exit code 1."""
        from crawler.extract.response import failure_text

        request: Request = failure.request  # type: ignore[attr-defined]
        complain(self.name, f"{request.url}: {failure_text(failure)}")
        self.exitcode = 1


def spider_arguments(given: list[str]) -> dict[str, str]:
    """Parse the values of `-a`; raises UsageError."""
    try:
        return arglist_to_dict(given)
    except ValueError:
        raise usage_error("invalid -a value. Use -a NAME=VALUE") from None


def spider_named(settings: BaseSettings, name: str) -> type[Spider]:
    """Return the spider class of a name; raises ConfigError with a similar name or all names."""
    loader: Any = get_spider_loader(settings)
    try:
        kind: type[Spider] = loader.load(name)
    except KeyError:
        ending = suggestion_or_all(name, sorted(loader.list()))
        raise ConfigError(f"spider not found: {name!r}{ending}") from None
    return kind
