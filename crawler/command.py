"""The base of Freshet's commands: strict usage, one-line errors, `--json`, an example."""

from __future__ import annotations

import argparse
import os
import sys
from abc import abstractmethod
from typing import Any, ClassVar

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError

from crawler.config import Config
from crawler.errors import FreshetError
from crawler.helping import Help
from crawler.utils.garbage import collect_again
from crawler.utils.terminal import as_json, complain, guard_logs, print_line


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
