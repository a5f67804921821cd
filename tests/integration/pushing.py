"""Helpers for `scrapy feeds push`: a hub, the running command, feeds as a crawl stores them."""

from __future__ import annotations

import hashlib
import hmac
import json
import signal
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from tests.integration.harness import Db, Freshet, Row
from tests.site.running import RunningServer

CALLBACK = "https://public.example/push"
FEED = "http://127.0.0.1:9/feed"
PATIENCE_SECONDS = 60.0
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
OPEN = build_opener(ProxyHandler({}))


class Hub(RunningServer):
    """A hub on this machine; each path below `url` behaves differently."""

    def __init__(self) -> None:
        super().__init__("tests.site.hub", [])

    def publish(self, body: str, method: str = "sha256", **more: str) -> list[int]:
        """Deliver to the subscribers of FEED and return the responses of the callbacks."""
        # Freshet confirms before the hub has received its response.
        wait_for(self.subscriptions)
        message = {"topic": FEED, "body": body, "method": method} | more
        _, text = ask(f"{self.url}/-/publish", json.dumps(message).encode())
        replies: list[int] = json.loads(text)
        return replies

    def subscriptions(self) -> list[Row]:
        rows: list[Row] = json.loads(ask(f"{self.url}/-/subscriptions")[1])
        return rows

    def asked(self, path: str) -> int:
        return sum(request["path"] == path for request in self.requests())


class Push:
    """A running `scrapy feeds push` with its own port."""

    def __init__(
        self, freshet: Freshet, *words: object, port: int = 0, hours: float = 0, **env: object
    ) -> None:
        self.port = port or free_port()
        self.callback = f"http://127.0.0.1:{self.port}/push"
        words = ("--callback", self.callback, "--port", self.port, "--check-seconds", 1, *words)
        self.process = freshet.start("feeds", "push", "--json", *words, hours=hours, **env)
        self.err = ""
        self.done: Row = {}

    def __enter__(self) -> Self:
        wait_for(lambda: self.process.poll() is not None or answers(self.callback))
        assert self.process.poll() is None, self.process.communicate()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        out, self.err = self.process.communicate(timeout=PATIENCE_SECONDS)
        if exception[0] is None:
            assert self.process.returncode == 0, self.err
            assert "Traceback" not in self.err, self.err
            self.done = json.loads(out)

    @property
    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.done["counts"]
        return counts


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def ask(
    url: str, body: bytes | None = None, headers: dict[str, str] | None = None, method: str = ""
) -> tuple[int, str]:
    """Send a request; return the status and the text of the response."""
    request = Request(url, body, headers or {}, method=method or None)
    try:
        with OPEN.open(request, timeout=PATIENCE_SECONDS) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def answers(url: str) -> bool:
    try:
        return ask(url)[0] == 404
    except OSError:
        return False


def wait_for(condition: Callable[[], Any]) -> None:
    """Wait until the condition is true; fail after PATIENCE_SECONDS."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "condition not met in time"
        time.sleep(0.05)


def put(db: Db, *hubs: str, url: str = FEED, **more: Any) -> None:
    """Store a feed whose document names hubs, as a crawl stores it."""
    now = datetime.now(UTC)
    names = {"_id": f"feeds {url}", "spider": "feeds", "url": url}
    db.feeds.insert_one(names | {"hubs": list(hubs), "topic": url} | more)
    db.targets.insert_one(
        names | {"kind": "feed", "first_seen": now, "next_visit": now + 3 * DAY, "requested": 1}
    )


def push_of(db: Db, url: str = FEED) -> Row:
    feed = db.feeds.find_one({"url": url}) or {}
    push: Row = feed.get("push") or {}
    return push


def state(db: Db, url: str = FEED) -> str | None:
    return push_of(db, url).get("state")


def until_state(db: Db, wanted: str, url: str = FEED) -> Row:
    wait_for(lambda: state(db, url) == wanted)
    return push_of(db, url)


def signed(push: Row, body: bytes, method: str = "sha1") -> dict[str, str]:
    digest = hmac.new(push["secret"].encode(), body, getattr(hashlib, method)).hexdigest()
    return {"X-Hub-Signature": f"{method}={digest}", "Content-Type": "application/atom+xml"}


def next_visit(db: Db) -> timedelta:
    target = db.targets.find_one({"url": FEED})
    assert target is not None
    left: timedelta = target["next_visit"] - datetime.now(UTC)
    return left
