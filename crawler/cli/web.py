"""Action of `scrapy web` that serves the web app."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.fetch.guard import is_loopback
from crawler.utils.terminal import as_json, complain, print_line
from crawler.utils.urls import host_of
from crawler.web.address import address_of
from crawler.web.dashboards.sources import Places, find, output_folder, places
from crawler.web.options import PORT, WebOptions, proxies_of, root_path_of
from crawler.web.websub.options import add_options_of_app, subscriptions_of

COMMAND = "web"


class Serving(TypedDict):
    """The web app that has started."""

    url: str
    """URL of the first page."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the address, and the options for reverse proxies."""
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="IP address to listen on; other addresses than loopback require users "
        "(default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port", default=str(PORT), help=f"port to listen on; 0: any free port (default: {PORT})"
    )
    parser.add_argument(
        "--root-path",
        default="",
        metavar="PATH",
        help="path under which a reverse proxy publishes the app, such as /freshet",
    )
    parser.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="IP address or network of a reverse proxy whose X-Forwarded-For, -Proto and -Host "
        "headers are used; requires users (repeatable)",
    )
    parser.add_argument(
        "--dashboards",
        nargs="?",
        const="",
        metavar="TEMPLATES",
        help="rebuild dashboards when their cells change, from this folder of templates; without "
        "a folder, the built-in page (default: serve the files of scrapy dashboards build)",
    )
    parser.add_argument(
        "--dashboards-out",
        metavar="DIR",
        help="folder of dashboards (default: dashboards in FRESHET_DATA_DIR)",
    )
    add_options_of_app(parser)


def run(config: Config, opts: argparse.Namespace) -> None:
    """Serve the app until a signal; the URL is printed on stdout. Raises FreshetError."""
    # Slow to import, and --help does not need it.
    from crawler.ops.schedule import command_line_settings

    host = f"[{opts.host}]" if ":" in opts.host else opts.host
    address = address_of(f"{host}:{opts.port}", "--host, --port")
    push = subscriptions_of(opts)
    out = output_folder(config, opts.dashboards_out)
    options = WebOptions(
        host=address.host,
        port=address.port,
        root_path=root_path_of(opts.root_path),
        proxies=proxies_of(opts.trusted_proxy),
        hosts=(*config.web_hosts, *([host_of(push.callback)] if push else ())),
        push=push,
        dashboards=out,
        builds=_builds(opts.dashboards, out),
        crawl_settings=tuple(command_line_settings(opts.settings)),
    )
    if push is None:
        asyncio.run(_serve(config, options, opts))
        return
    # Requests to hubs use Twisted's reactor.
    from crawler.web.reactor import run_in_reactor

    run_in_reactor(_serve(config, options, opts))


def _builds(templates: str | None, out: Path) -> Places | None:
    """Return the folders of dashboards to rebuild; None without `--dashboards`."""
    if templates is None:
        return None
    folders = places(templates or None, out, "--dashboards-out")
    # An error here ends the command; later errors are only printed.
    find(folders.templates)
    return folders


async def _serve(config: Config, options: WebOptions, opts: argparse.Namespace) -> None:
    # FastAPI is slow to import, and --help does not need it.
    from crawler.web.app import create_app
    from crawler.web.serving import listen, serve_until_signal, url_of
    from spiders.probe import fetch_pages, spider_names

    if not options.is_private:
        await _require_users(config, options)
    app = create_app(config, options, fetch_pages, spider_names())
    listener = listen(options)
    url = url_of(listener, options.root_path)

    def ready() -> None:
        if opts.json:
            print_line(as_json(Serving(url=url)))
            # A reader of a pipe waits for this line.
            sys.stdout.flush()
        else:
            complain(COMMAND, f"serving {url}")

    try:
        await serve_until_signal(app, options, listener, ready, app.state.streams.end)
    finally:
        listener.close()


async def _require_users(config: Config, options: WebOptions) -> None:
    """Raise ConfigError if the app would be open to other machines without any user."""
    from crawler.storage.accounts import users
    from crawler.storage.store import opened

    async with opened(config) as db:
        if await users.any_exists(db):
            return
    if not is_loopback(options.host):
        reason = f"--host {options.host}: other machines could change everything without signing in"
    elif options.push is not None:
        reason = "--public-url: everybody who knows the URL could change everything"
    elif options.proxies:
        reason = "--trusted-proxy: everybody behind the proxy could change everything"
    else:
        reason = "FRESHET_WEB_HOSTS: other machines could change everything without signing in"
    raise ConfigError(f"{reason}. Run scrapy web user add NAME --role editor first")
