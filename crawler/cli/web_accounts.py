"""Actions of `scrapy web user` and `scrapy web token`."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta

from typing_extensions import TypedDict

from crawler.cli.base import Functions, confirm, option, print_json, with_database
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage.accounts import credentials, users
from crawler.storage.accounts.credentials import Token
from crawler.storage.accounts.schemas import Role, Scope
from crawler.storage.client import Database
from crawler.utils import time as units
from crawler.utils.terminal import print_line, stdout

# Name in the audit list.
COMMAND_LINE = "command line"


class UserRow(TypedDict):
    """A user of the web app."""

    name: str
    """Name that the user signs in with."""
    role: str
    """viewer or editor."""
    created_at: str
    """Time when the user was added."""
    password_at: str
    """Time when the password was last set."""


class TokenRow(TypedDict):
    """An API token without its secret."""

    id: str
    """Public part of the token, for `scrapy web token revoke`."""
    user: str
    """Name of the user whose token it is."""
    label: str
    """Purpose of the token, as given when it was added."""
    scopes: list[str]
    """read, or read and write."""
    created_at: str
    """Time when the token was added."""
    used_at: str | None
    """Time of the last use; null: never used."""
    expires_at: str | None
    """Time from which the token is invalid; null: never."""


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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `user add`."""
    _name(parser)
    parser.add_argument(
        "--role",
        choices=[str(role) for role in Role],
        default=str(Role.VIEWER),
        help="viewer: reads; editor: also changes settings and starts crawls (default: viewer)",
    )
    _password_stdin(parser)


def passwd_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `user passwd`."""
    _name(parser)
    _password_stdin(parser)


def role_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `user role`."""
    _name(parser)
    parser.add_argument("role", choices=[str(role) for role in Role], help="the new role")


def remove_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `user remove`."""
    _name(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def token_add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `token add`."""
    _name(parser)
    parser.add_argument("--label", default="", metavar="TEXT", help="what the token is for")
    parser.add_argument(
        "--scope",
        choices=[str(scope) for scope in Scope],
        default=str(Scope.READ),
        help="read, or write, which includes read (default: read)",
    )
    parser.add_argument("--expires", metavar="T", help="time until it expires, such as 90d")


def token_list_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `token list`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="user (default: all users)")


def revoke_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `token revoke`."""
    parser.add_argument("id", metavar="ID", help="id of the token, see scrapy web token list")


def no_options(parser: argparse.ArgumentParser) -> None:
    """Add nothing: `user list` has no options."""


def add_user(config: Config, opts: argparse.Namespace) -> None:
    """Add a user."""
    from crawler.web import passwords

    name, now = users.name_of(opts.name), config.clock.now()

    async def check(db: Database) -> None:
        if await users.find(db, name):
            raise users.taken(name)

    # Check the name before asking for the password.
    with_database(config, check)
    password_hash = passwords.hashed(passwords.check(_password(opts)))

    async def work(db: Database) -> None:
        await users.add(db, name, Role(opts.role), password_hash, now)
        await users.record(db, now, COMMAND_LINE, "web user add", detail=f"{name}, {opts.role}")

    with_database(config, work)
    _report(opts, UserRole(name=name, role=opts.role), f"added {opts.role} {name}")


def set_password(config: Config, opts: argparse.Namespace) -> None:
    """Set a user's password."""
    from crawler.web import passwords

    name, now = users.name_of(opts.name), config.clock.now()

    async def check(db: Database) -> None:
        if await users.find(db, name) is None:
            raise await users.unknown(db, name)

    with_database(config, check)
    password_hash = passwords.hashed(passwords.check(_password(opts)))

    async def work(db: Database) -> None:
        await users.set_password(db, name, password_hash, now)
        await users.record(db, now, COMMAND_LINE, "web user passwd", detail=name)

    with_database(config, work)
    _report(opts, ChangedUser(name=name), f"changed the password of {name}, who is now signed out")


def set_role(config: Config, opts: argparse.Namespace) -> None:
    """Change the role of a user."""
    name, now = users.name_of(opts.name), config.clock.now()

    async def work(db: Database) -> None:
        await users.set_role(db, name, Role(opts.role))
        await users.record(db, now, COMMAND_LINE, "web user role", detail=f"{name}, {opts.role}")

    with_database(config, work)
    _report(opts, UserRole(name=name, role=opts.role), f"{name} is now {opts.role}")


def remove_user(config: Config, opts: argparse.Namespace) -> None:
    """Remove a user."""
    name, now = users.name_of(opts.name), config.clock.now()
    confirm(f"user {name} with all sessions and API tokens", opts)

    async def work(db: Database) -> None:
        await users.remove(db, name)
        await users.record(db, now, COMMAND_LINE, "web user remove", detail=name)

    with_database(config, work)
    _report(opts, ChangedUser(name=name), f"removed {name}")


def list_users(config: Config, opts: argparse.Namespace) -> None:
    """Print all users."""
    everyone = with_database(config, users.everyone)
    rows = [
        UserRow(
            name=user.name,
            role=str(user.role),
            created_at=user.created_at.isoformat(),
            password_at=user.password_at.isoformat(),
        )
        for user in everyone
    ]
    if opts.json:
        print_json(rows)
    elif not rows:
        print_line("no users: the web app serves only this machine, without sign-in")
    else:
        _print_table(
            ("name", "role", "added", "password set"),
            [(r["name"], r["role"], r["created_at"][:10], r["password_at"][:10]) for r in rows],
        )


def add_token(config: Config, opts: argparse.Namespace) -> None:
    """Add an API token, and print it."""
    name, now = users.name_of(opts.name), config.clock.now()
    hours = option(units.hours, opts.expires, "--expires")
    expires = None if hours is None else now + timedelta(hours=hours)
    scopes = [Scope.READ] if opts.scope == Scope.READ else list(Scope)

    async def work(db: Database) -> tuple[str, Token]:
        if await users.find(db, name) is None:
            raise await users.unknown(db, name)
        secret, token = await credentials.add_token(db, name, opts.label, scopes, now, expires)
        detail = f"{token.id} of {name}, {opts.scope}"
        await users.record(db, now, COMMAND_LINE, "web token add", detail=detail)
        return secret, token

    secret, token = with_database(config, work)
    if opts.json:
        print_json(NewToken(secret=secret, token=_token_row(token)))
    else:
        print_line(secret)


def list_tokens(config: Config, opts: argparse.Namespace) -> None:
    """Print the API tokens, without their secrets."""
    name = None if opts.name is None else users.name_of(opts.name)
    listed = with_database(config, lambda db: credentials.tokens_of(db, name))
    rows = [_token_row(token) for token in listed]
    if opts.json:
        print_json(rows)
    elif not rows:
        print_line("no API tokens")
    else:
        cells = [
            (
                row["id"], row["user"], ", ".join(row["scopes"]), (row["used_at"] or "never")[:10],
                (row["expires_at"] or "never")[:10], row["label"],
            )
            for row in rows
        ]  # fmt: skip
        _print_table(("id", "user", "scopes", "last used", "expires", "label"), cells)


def revoke_token(config: Config, opts: argparse.Namespace) -> None:
    """Revoke an API token."""
    now = config.clock.now()

    async def work(db: Database) -> Token:
        token = await credentials.revoke_token(db, opts.id)
        detail = f"{token.id} of {token.user}"
        await users.record(db, now, COMMAND_LINE, "web token revoke", detail=detail)
        return token

    token = with_database(config, work)
    _report(opts, RevokedToken(id=token.id, user=token.user), f"revoked {token.id} of {token.user}")


FUNCTIONS: Mapping[str, Functions] = {
    "user add": (add_options, add_user),
    "user list": (no_options, list_users),
    "user role": (role_options, set_role),
    "user passwd": (passwd_options, set_password),
    "user remove": (remove_options, remove_user),
    "token add": (token_add_options, add_token),
    "token list": (token_list_options, list_tokens),
    "token revoke": (revoke_options, revoke_token),
}


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the user")


def _password_stdin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--password-stdin",
        action="store_true",
        help="read the password from the first line of standard input instead of asking for it",
    )


def _password(opts: argparse.Namespace) -> str:
    """Return the password from standard input, or ask for it twice without echo."""
    if opts.password_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise ConfigError("no terminal to ask for the password on. Use --password-stdin")
    first = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != first:
        raise ConfigError("the passwords differ; nothing was changed")
    return first


def _report(
    opts: argparse.Namespace, value: ChangedUser | UserRole | RevokedToken, line: str
) -> None:
    if opts.json:
        print_json(value)
    else:
        print_line(line)


def _token_row(token: Token) -> TokenRow:
    return TokenRow(
        id=token.id,
        user=token.user,
        label=token.label,
        scopes=sorted(map(str, token.scopes)),
        created_at=token.created_at.isoformat(),
        used_at=token.used_at.isoformat() if token.used_at else None,
        expires_at=token.expires_at.isoformat() if token.expires_at else None,
    )


def _print_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    stdout().print(table)
