"""`scrapy web`: the web app, its users and its API tokens."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions, JsonTypes

RUN = "run"
USER, TOKEN = "user", "token"


class Command(ActionsCommand):
    """Serve the web app, or manage its users and API tokens."""

    default_action = RUN
    actions: ClassVar[Mapping[str, Action]] = {
        RUN: Action("Serve the web app until SIGTERM or SIGINT", "scrapy web --port 8787"),
        f"{USER} add": Action(
            "Add a user; the password is asked for", "scrapy web user add anna --role editor"
        ),
        f"{USER} list": Action("List the users", "scrapy web user list"),
        f"{USER} role": Action("Change the role of a user", "scrapy web user role anna viewer"),
        f"{USER} passwd": Action(
            "Set a user's password; ends all sessions of the user", "scrapy web user passwd anna"
        ),
        f"{USER} remove": Action(
            "Remove a user with all sessions and API tokens", "scrapy web user remove anna --yes"
        ),
        f"{TOKEN} add": Action(
            "Add an API token of a user and print it; it cannot be printed again",
            "scrapy web token add anna --label backup --scope read",
        ),
        f"{TOKEN} list": Action("List the API tokens", "scrapy web token list"),
        f"{TOKEN} revoke": Action("Revoke an API token", "scrapy web token revoke 3f9a1c2b4d5e"),
    }
    example = "scrapy web --port 8787"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "Serve the web app: sites, targets and changes in a browser, and a JSON API"

    def syntax(self) -> str:
        """Return the part of the usage line after the command's name."""
        return f"[options] [{RUN}|{USER} ACTION|{TOKEN} ACTION] [ARG…]"

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Join the two words of an action such as `user add`, then run it."""
        if args and args[0] in (USER, TOKEN):
            args = [" ".join(args[:2]), *args[2:]]
        super().run(args, opts)

    def functions(self, action: str) -> Functions:
        """Import and return the functions of an action."""
        from crawler.cli import web, web_accounts

        if action == RUN:
            return web.add_options, web.run
        return web_accounts.FUNCTIONS[action]

    def json_types(self) -> JsonTypes:
        """Return the types of what each action prints."""
        from crawler.cli import web_accounts as accounts
        from crawler.cli.web import Serving

        return {
            "scrapy web run --json": Serving,
            "scrapy web user add NAME --json": accounts.UserRole,
            "scrapy web user list --json": list[accounts.UserRow],
            "scrapy web user role NAME ROLE --json": accounts.UserRole,
            "scrapy web user passwd NAME --json": accounts.ChangedUser,
            "scrapy web user remove NAME --json": accounts.ChangedUser,
            "scrapy web token add NAME --json": accounts.NewToken,
            "scrapy web token list --json": list[accounts.TokenRow],
            "scrapy web token revoke ID --json": accounts.RevokedToken,
        }
