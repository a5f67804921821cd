"""`scrapy web`: the web app, its users and its API tokens."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import Action, ActionsCommand
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
    summary = "Serve the web app: sites, targets and changes in a browser, and a JSON API"
    example = "scrapy web --port 8787"
    documents: ClassVar = {
        "scrapy web run --json": Serving,
        "scrapy web user add NAME --json": "crawler.cli.web_accounts.UserRole",
        "scrapy web user list --json": "list[crawler.storage.users.UserRow]",
        "scrapy web user role NAME ROLE --json": "crawler.cli.web_accounts.UserRole",
        "scrapy web user passwd NAME --json": "crawler.cli.web_accounts.ChangedUser",
        "scrapy web user remove NAME --json": "crawler.cli.web_accounts.ChangedUser",
        "scrapy web token add NAME --json": "crawler.cli.web_accounts.NewToken",
        "scrapy web token list --json": "list[crawler.storage.users.TokenRow]",
        "scrapy web token revoke ID --json": "crawler.cli.web_accounts.RevokedToken",
    }

    def syntax(self) -> str:
        """Return the part of the usage line after the command's name."""
        return f"[options] [{RUN}|{USER} ACTION|{TOKEN} ACTION] [ARG…]"

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Join the two words of an action such as `user add`, then run it."""
        if args and args[0] in (USER, TOKEN):
            args = [" ".join(args[:2]), *args[2:]]
        super().run(args, opts)

    @property
    def actions(self) -> Mapping[str, Action]:
        """Import and return the actions."""
        from crawler.cli.web_accounts import ACTIONS

        serve = Action("Serve the web app until SIGTERM or SIGINT", self.example, run, add_options)
        return {RUN: serve, **ACTIONS}


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
        "--dashboards", metavar="TEMPLATES", type=Path,
        help="folder of templates of dashboards (default: built-in page of all cells)",
    )  # fmt: skip
    parser.add_argument(
        "--no-service", dest="service", action="store_false",
        help="only serve pages: do not crawl what is due, replan, prune and notify, as scrapy "
        "refresh run does",
    )  # fmt: skip
    add_options_of_app(parser)


def run(config: Config, opts: argparse.Namespace) -> None:
    """Serve the app until a signal; the URL is printed on stdout. Raises FreshetError."""
    from crawler.ops.schedule import command_line_settings
    from crawler.web.dashboards.sources import find
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
    dashboards = opts.dashboards and opts.dashboards.absolute()
    # An error here ends the command; later errors are shown in place of the pages.
    find(dashboards)
    options = WebOptions(
        host=address.host,
        port=address.port,
        root_path=root_path_of(opts.root_path),
        proxies=proxies_of(opts.trusted_proxy),
        hosts=(*config.web_hosts, *([host_of(push.callback)] if push else ())),
        push=push,
        dashboards=dashboards,
        settings=tuple(command_line_settings(opts.settings)),
        service=opts.service,
    )
    asyncio.run(_serve(config, options, opts))


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
    from crawler.storage import users
    from crawler.storage.store import opened

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
