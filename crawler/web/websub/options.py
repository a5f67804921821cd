"""Options of `scrapy feeds push`, and those of `scrapy web` for pushes."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from crawler.errors import ConfigError
from crawler.utils.urls import is_http

MAX_CHARACTERS = 500
LEASE_DAYS = (1 / 24, 30.0)
EXAMPLE = "https://public.example/push"
# Path of the callback in the web app.
CALLBACK = "/websub"
LEASE, CHECK = "10", "60"


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """Options of the requests for subscriptions.

    callback:      public URL of this server, without a slash at its end
    lease:         lease to request
    check_seconds: interval between checks for feeds to subscribe to
    """

    callback: str
    lease: timedelta
    check_seconds: float


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Validated options. seconds: time after which the server exits; None: run until stopped."""

    subscriptions: SubscriptionOptions
    bind: str
    port: int
    seconds: float | None
    unsubscribe: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `scrapy feeds push`."""
    parser.add_argument(
        "--callback", metavar="URL", help=f"public URL of this server, such as {EXAMPLE}"
    )
    parser.add_argument(
        "--bind",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port", metavar="N", default="8075", help="port to listen on (default: 8075)"
    )
    parser.add_argument(
        "--lease-days",
        metavar="D",
        default=LEASE,
        help=f"lease to request from hubs, in days (default: {LEASE})",
    )
    parser.add_argument(
        "--check-seconds",
        metavar="S",
        default=CHECK,
        help=f"time between checks for feeds to subscribe to (default: {CHECK})",
    )
    parser.add_argument("--for", dest="for_seconds", metavar="S", help="stop after S seconds")
    parser.add_argument(
        "--unsubscribe", action="store_true", help="unsubscribe from all hubs at the end"
    )


def add_options_of_app(parser: argparse.ArgumentParser) -> None:
    """Add the options of `scrapy web` for pushes."""
    parser.add_argument(
        "--public-url",
        metavar="URL",
        help="URL at which WebSub hubs reach this app, such as https://public.example; subscribes "
        "to the hubs of feeds, and requires users (default: no pushes)",
    )
    parser.add_argument(
        "--push-lease-days",
        metavar="D",
        default=LEASE,
        help=f"lease to request from hubs, in days (default: {LEASE})",
    )
    parser.add_argument(
        "--push-check-seconds",
        metavar="S",
        default=CHECK,
        help=f"time between checks for feeds to subscribe to (default: {CHECK})",
    )


def options_of(opts: argparse.Namespace) -> PushOptions:
    """Validate the options; raises ConfigError."""
    days = _number(opts.lease_days, "--lease-days", *LEASE_DAYS)
    check_seconds = _number(opts.check_seconds, "--check-seconds", 1, 3600)
    seconds = opts.for_seconds
    return PushOptions(
        subscriptions=SubscriptionOptions(
            url_of(opts.callback, "--callback"), timedelta(days=days), check_seconds
        ),
        bind=opts.bind,
        port=int(_number(opts.port, "--port", 0, 65_535)),
        seconds=None if seconds is None else _number(seconds, "--for", 0, 1e8),
        unsubscribe=opts.unsubscribe,
    )


def subscriptions_of(opts: argparse.Namespace) -> SubscriptionOptions | None:
    """Validate the options of `scrapy web`; None without `--public-url`. Raises ConfigError."""
    if opts.public_url is None:
        return None
    days = _number(opts.push_lease_days, "--push-lease-days", *LEASE_DAYS)
    seconds = _number(opts.push_check_seconds, "--push-check-seconds", 1, 3600)
    public = url_of(opts.public_url, "--public-url")
    return SubscriptionOptions(public + CALLBACK, timedelta(days=days), seconds)


def url_of(url: str | None, option: str) -> str:
    """Return a public URL without a slash at its end; raises ConfigError."""
    if not url:
        raise ConfigError(f"{option} is required: the public URL of this server, such as {EXAMPLE}")
    try:
        parts = urlsplit(url)
        bad = not is_http(url) or not url.isascii() or "@" in parts.netloc or " " in url
        bad = bad or bool(parts.query or parts.fragment) or parts.port == 0
    except ValueError:
        bad = True
    if bad or len(url) > MAX_CHARACTERS:
        raise ConfigError(
            f"{option}: {url[:MAX_CHARACTERS]!r} is not an http or https URL such as {EXAMPLE}"
        )
    return url.rstrip("/")


def _number(text: str, option: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ConfigError(f"{option}: {text!r} is not a number from {low:.3g} to {high:,.10g}")
    return value
