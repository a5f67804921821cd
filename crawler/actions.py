"""The base of commands with actions, such as `scrapy feeds import`: each reads its own options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from scrapy.exceptions import UsageError

from crawler.command import FreshetCommand


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
