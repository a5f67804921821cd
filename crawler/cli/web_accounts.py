"""Actions of `scrapy web user` and `scrapy web token`."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from rich.table import Table
from typing_extensions import TypedDict

from crawler.cli.base import Action, confirm, option, print_json, with_database
from crawler.cli.options import add_yes
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage import users
from crawler.storage.client import Database
from crawler.storage.users import Role, Scope, TokenRow
from crawler.utils import time as units
from crawler.utils.terminal import print_line, stdout

Result = TypeVar("Result")
# Name in the audit list.
COMMAND_LINE = "command line"


class NewToken(TypedDict):
    """An API token that has just been added."""

    secret: str
    """Text to send as `Authorization: Bearer …`; it is not stored."""
    token: TokenRow
    """The token without its secret."""


class RevokedToken(TypedDict):
    """An API token that has just been revoked."""

    id: str
    """Public part of the token."""
    user: str
    """Name of the user whose token it was."""


class ChangedUser(TypedDict):
    """A user whose password was set, or who was removed."""

    name: str
    """Name of the user."""


class UserRole(TypedDict):
    """A user who was added, or whose role was changed."""

    name: str
    """Name of the user."""
    role: str
    """viewer or editor."""


def name_argument(parser: argparse.ArgumentParser) -> None:
    """Add the user."""
    parser.add_argument("name", metavar="NAME", help="name of the user")


def password_options(parser: argparse.ArgumentParser) -> None:
    """Add the user and `--password-stdin`."""
    name_argument(parser)
    parser.add_argument(
        "--password-stdin", action="store_true",
        help="read the password from the first line of standard input instead of asking for it",
    )  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the user, the role and `--password-stdin`."""
    parser.add_argument(
        "--role", choices=[str(role) for role in Role], default=str(Role.VIEWER),
        help="viewer: reads; editor: also changes settings and starts crawls (default: viewer)",
    )  # fmt: skip
    password_options(parser)


def role_options(parser: argparse.ArgumentParser) -> None:
    """Add the user and the role."""
    name_argument(parser)
    parser.add_argument("role", choices=[str(role) for role in Role], help="the new role")


def remove_options(parser: argparse.ArgumentParser) -> None:
    """Add the user and `--yes`."""
    name_argument(parser)
    add_yes(parser)


def token_options(parser: argparse.ArgumentParser) -> None:
    """Add the user, and the purpose, scope and end of the token."""
    name_argument(parser)
    parser.add_argument("--label", default="", metavar="TEXT", help="what the token is for")
    parser.add_argument(
        "--scope", choices=[str(scope) for scope in Scope], default=str(Scope.READ),
        help="read, or write, which includes read (default: read)",
    )  # fmt: skip
    parser.add_argument("--expires", metavar="T", help="time until it expires, such as 90d")


def token_list_options(parser: argparse.ArgumentParser) -> None:
    """Add an optional user."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="user (default: all users)")


def revoke_options(parser: argparse.ArgumentParser) -> None:
    """Add the token."""
    parser.add_argument("id", metavar="ID", help="id of the token, see scrapy web token list")


def add_user(config: Config, opts: argparse.Namespace) -> None:
    """Add a user."""
    name = users.name_of(opts.name)

    async def refuse_taken(db: Database) -> None:
        if await users.find(db, name):
            raise users.taken(name)

    # Check the name before asking for the password.
    with_database(config, refuse_taken)
    password_hash, now = _new_hash(opts), config.clock.now()
    _change(
        config, "web user add", f"{name}, {opts.role}",
        lambda db: users.add(db, name, Role(opts.role), password_hash, now),
    )  # fmt: skip
    _report(opts, UserRole(name=name, role=opts.role), f"added {opts.role} {name}")


def set_password(config: Config, opts: argparse.Namespace) -> None:
    """Set a user's password."""
    name = users.name_of(opts.name)
    with_database(config, partial(_require_user, name=name))
    password_hash, now = _new_hash(opts), config.clock.now()
    _change(
        config, "web user passwd", name,
        lambda db: users.set_password(db, name, password_hash, now),
    )  # fmt: skip
    _report(opts, ChangedUser(name=name), f"changed the password of {name}, who is now signed out")


def set_role(config: Config, opts: argparse.Namespace) -> None:
    """Change the role of a user."""
    name, role = users.name_of(opts.name), Role(opts.role)
    _change(config, "web user role", f"{name}, {role}", lambda db: users.set_role(db, name, role))
    _report(opts, UserRole(name=name, role=role), f"{name} is now {role}")


def remove_user(config: Config, opts: argparse.Namespace) -> None:
    """Remove a user."""
    name = users.name_of(opts.name)
    confirm(f"user {name} with all sessions and API tokens", opts)
    _change(config, "web user remove", name, lambda db: users.remove(db, name))
    _report(opts, ChangedUser(name=name), f"removed {name}")


def list_users(config: Config, opts: argparse.Namespace) -> None:
    """Print all users."""
    rows = [user.row for user in with_database(config, users.everyone)]
    if opts.json:
        print_json(rows)
    elif not rows:
        print_line("no users: the web app serves only this machine, without sign-in")
    else:
        cells = [(r["name"], r["role"], r["created_at"], r["password_at"]) for r in rows]
        _print_table(("name", "role", "added", "password set"), cells)


def add_token(config: Config, opts: argparse.Namespace) -> None:
    """Add an API token, and print it."""
    name, now = users.name_of(opts.name), config.clock.now()
    hours = option(units.hours, opts.expires, "--expires")
    expires = None if hours is None else now + timedelta(hours=hours)
    scopes = [Scope.READ] if opts.scope == Scope.READ else list(Scope)

    async def add(db: Database) -> tuple[str, TokenRow]:
        await _require_user(db, name)
        return await users.add_token(db, name, opts.label, scopes, now, expires)

    secret, token = _change(
        config, "web token add", lambda added: f"{added[1]['id']} of {name}, {opts.scope}", add
    )
    if opts.json:
        print_json(NewToken(secret=secret, token=token))
    else:
        print_line(secret)


def list_tokens(config: Config, opts: argparse.Namespace) -> None:
    """Print the API tokens, without their secrets."""
    name = None if opts.name is None else users.name_of(opts.name)

    async def read(db: Database) -> list[TokenRow]:
        if name is not None:
            await _require_user(db, name)
        return await users.tokens_of(db, name)

    rows = with_database(config, read)
    if opts.json:
        print_json(rows)
    elif not rows:
        print_line("no API tokens")
    else:
        cells = [
            (r["id"], r["user"], ", ".join(r["scopes"]), r["used_at"], r["expires_at"], r["label"])
            for r in rows
        ]
        _print_table(("id", "user", "scopes", "last used", "expires", "label"), cells)


def revoke_token(config: Config, opts: argparse.Namespace) -> None:
    """Revoke an API token."""
    token = _change(
        config, "web token revoke", lambda revoked: f"{revoked['id']} of {revoked['user']}",
        lambda db: users.revoke_token(db, opts.id),
    )  # fmt: skip
    revoked = RevokedToken(id=token["id"], user=token["user"])
    _report(opts, revoked, f"revoked {token['id']} of {token['user']}")


ACTIONS: Mapping[str, Action] = {
    "user add": Action(
        "Add a user; prompts for the password", "scrapy web user add anna --role editor",
        add_user, add_options,
    ),
    "user list": Action("List the users", "scrapy web user list", list_users),
    "user role": Action(
        "Change the role of a user", "scrapy web user role anna viewer", set_role, role_options
    ),
    "user passwd": Action(
        "Set a user's password; ends all sessions of the user", "scrapy web user passwd anna",
        set_password, password_options,
    ),
    "user remove": Action(
        "Remove a user with all sessions and API tokens", "scrapy web user remove anna --yes",
        remove_user, remove_options,
    ),
    "token add": Action(
        "Add an API token of a user and print it; it cannot be printed again",
        "scrapy web token add anna --label backup --scope read", add_token, token_options,
    ),
    "token list": Action(
        "List the API tokens", "scrapy web token list", list_tokens, token_list_options
    ),
    "token revoke": Action(
        "Revoke an API token", "scrapy web token revoke 3f9a1c2b4d5e", revoke_token, revoke_options
    ),
}  # fmt: skip


def _change(
    config: Config,
    action: str,
    detail: str | Callable[[Result], str],
    change: Callable[[Database], Awaitable[Result]],
) -> Result:
    """Make a change, add it to the audit list, and return its result.

    detail: for the audit list; may depend on the result
    """

    async def work(db: Database) -> Result:
        result = await change(db)
        text = detail if isinstance(detail, str) else detail(result)
        await users.record(db, config.clock.now(), COMMAND_LINE, action, detail=text)
        return result

    return with_database(config, work)


async def _require_user(db: Database, name: str) -> None:
    if await users.find(db, name) is None:
        raise await users.unknown(db, name)


def _new_hash(opts: argparse.Namespace) -> str:
    """Return the hash of a password from standard input, or typed twice without echo."""
    from crawler.web import passwords

    if opts.password_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    elif not sys.stdin.isatty():
        raise ConfigError("no terminal to ask for the password on. Use --password-stdin")
    else:
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            raise ConfigError("the passwords differ; nothing was changed")
    return passwords.hashed(passwords.check(password))


def _report(
    opts: argparse.Namespace, value: ChangedUser | UserRole | RevokedToken, line: str
) -> None:
    if opts.json:
        print_json(value)
    else:
        print_line(line)


def _print_table(
    columns: tuple[str, ...], rows: Sequence[tuple[str | datetime | None, ...]]
) -> None:
    """Print rows with times as days, and `never` for None."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        shown = ("never" if cell is None else cell for cell in row)
        table.add_row(*(f"{x:%Y-%m-%d}" if isinstance(x, datetime) else x for x in shown))
    stdout().print(table)
