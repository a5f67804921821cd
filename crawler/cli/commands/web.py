"""`scrapy web`: the web app, its users and its API tokens."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import Action, ActionsCommand, Functions, JsonTypes
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.terminal import as_json, complain, print_line
from crawler.utils.urls import host_of

if TYPE_CHECKING:
    from crawler.web.options import WebOptions

RUN = "run"
USER, TOKEN = "user", "token"


class Serving(TypedDict):
    """The web app that has started."""

    url: str
    """URL of the first page."""


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
    summary = "Serve the web app: sites, targets and changes in a browser, and a JSON API"
    example = "scrapy web --port 8787"

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
        if action == RUN:
            return add_options, run

        from crawler.cli import web_accounts

        return web_accounts.FUNCTIONS[action]

    def json_types(self) -> JsonTypes:
        """Return the types of the output of each action."""
        from crawler.cli import web_accounts as accounts

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the address, and the options for reverse proxies."""
    from crawler.web.options import PORT, add_options_of_app

    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS",
        help="IP address to listen on; other addresses than loopback require users "
        "(default: 127.0.0.1)",
    )  # fmt: skip
    parser.add_argument(
        "--port", default=str(PORT), help=f"port to listen on; 0: any free port (default: {PORT})"
    )
    parser.add_argument(
        "--root-path", default="", metavar="PATH",
        help="path under which a reverse proxy publishes the app, such as /freshet",
    )  # fmt: skip
    parser.add_argument(
        "--trusted-proxy", action="append", default=[], metavar="ADDRESS",
        help="IP address or network of a reverse proxy whose X-Forwarded-For, -Proto and -Host "
        "headers are used; requires users (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--dashboards", nargs="?", const="", metavar="TEMPLATES",
        help="rebuild dashboards when their cells change, from this folder of templates; without "
        "a folder, the built-in page (default: serve the files of scrapy dashboards build)",
    )  # fmt: skip
    parser.add_argument(
        "--dashboards-out", metavar="DIR",
        help="folder of dashboards (default: dashboards in FRESHET_DATA_DIR)",
    )  # fmt: skip
    add_options_of_app(parser)


def run(config: Config, opts: argparse.Namespace) -> None:
    """Serve the app until a signal; the URL is printed on stdout. Raises FreshetError."""
    from crawler.ops.schedule import command_line_settings
    from crawler.web.dashboards.sources import find, output_folder, places
    from crawler.web.options import (
        Address,
        WebOptions,
        ip_of,
        port_of,
        proxies_of,
        root_path_of,
        subscriptions_of,
    )

    address = Address(ip_of(opts.host, "--host"), port_of(opts.port, "--port"))
    push = subscriptions_of(opts)
    out = output_folder(config, opts.dashboards_out)
    builds = None
    if opts.dashboards is not None:
        builds = places(opts.dashboards or None, out, "--dashboards-out")
        # An error here ends the command; later errors are only printed.
        find(builds.templates)
    options = WebOptions(
        host=address.host,
        port=address.port,
        root_path=root_path_of(opts.root_path),
        proxies=proxies_of(opts.trusted_proxy),
        hosts=(*config.web_hosts, *([host_of(push.callback)] if push else ())),
        push=push,
        dashboards=out,
        builds=builds,
        settings=tuple(command_line_settings(opts.settings)),
    )
    if push is None:
        asyncio.run(_serve(config, options, opts))
        return
    # Requests to hubs use Twisted's reactor.
    from crawler.web.server import run_in_reactor

    run_in_reactor(_serve(config, options, opts))


async def _serve(config: Config, options: WebOptions, opts: argparse.Namespace) -> None:
    from crawler.web.app import create_app
    from crawler.web.server import listen, serve_until_signal, url_of
    from spiders.probe import fetch_pages, spider_names

    if not options.is_private:
        await _require_users(config, options)
    given = dict(word.split("=", 1) for word in options.settings[1::2])
    app = create_app(config, options, partial(fetch_pages, settings=given), spider_names())
    listener = listen(options)
    url = url_of(listener, options.root_path)

    def ready() -> None:
        if opts.json:
            print_line(as_json(Serving(url=url)))
            # A reader of a pipe waits for this line.
            sys.stdout.flush()
        else:
            complain("web", f"serving {url}")

    try:
        await serve_until_signal(app, options, listener, ready, app.state.streams.end)
    finally:
        listener.close()


async def _require_users(config: Config, options: WebOptions) -> None:
    """Raise ConfigError if the app would be open to other machines without any user."""
    from crawler.fetch.guard import is_loopback
    from crawler.storage.accounts import users
    from crawler.storage.client import opened

    async with opened(config) as db:
        if await users.any_exists(db):
            return
    if not is_loopback(options.host):
        reason = f"--host {options.host}: other machines could change everything without signing in"
    elif options.push is not None:
        reason = "--public-url: anyone who knows the URL could change everything"
    elif options.proxies:
        reason = "--trusted-proxy: anyone behind the proxy could change everything"
    else:
        reason = "FRESHET_WEB_HOSTS: other machines could change everything without signing in"
    raise ConfigError(f"{reason}. Run scrapy web user add NAME --role editor first")
