"""A WebSub hub on 127.0.0.1, well-behaved or not: `python -m tests.site.hub`.

Clients subscribe at one of these paths, each of which is a hub with its own behavior:

/hub      confirms, and signs its deliveries       /eager    confirms before it answers
/deny     accepts, then denies the subscription    /silent   accepts and never confirms
/refuse   400       /fail   500       /busy   503 with Retry-After      /moved   307 to /hub

`?lease=N` makes leases of N seconds, whatever the client requests. POST /-/publish delivers (JSON
in, JSON out), GET /-/subscriptions lists the subscriptions, /-/forget deletes them.
"""

from __future__ import annotations

import argparse
import hmac
import json
from collections.abc import Coroutine
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError
from twisted.web.client import Agent, FileBodyProducer, ResponseFailed, readBody
from twisted.web.http_headers import Headers
from twisted.web.server import Request

from tests.site import serving
from tests.site.exchange import Answer, Exchange, RequestLog

CHALLENGE = "a challenge of 4 words: <b>&\u00fc</b>"
STATUS = {"/hub": 202, "/eager": 202, "/deny": 202, "/silent": 202, "/refuse": 400, "/fail": 500}


@dataclass
class Subscription:
    """A subscription; `answers` are the callback's statuses to the hub's verification requests."""

    topic: str
    callback: str
    secret: str
    lease_seconds: str
    active: bool = False
    asked: int = 0
    answers: list[int] = field(default_factory=list)


class Hub:
    """Accept subscriptions and deliver posts."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, Subscription] = {}
        untyped: Any = Agent
        self._agent: Any = untyped(serving.reactor, connectTimeout=5)

    def quick(self, request: Request) -> bytes | None:
        """Return None: every request needs an exchange."""
        return None

    def handle(self, exchange: Exchange) -> None:
        """Answer a request."""
        if exchange.path == "/-/subscriptions":
            _send_json(exchange, [asdict(one) for one in self._subscriptions.values()])
        elif exchange.path == "/-/forget":
            self._subscriptions.clear()
            _send_json(exchange, [])
        elif exchange.path == "/-/publish":
            _start(self._publish(exchange, json.load(exchange.request.content)))
        elif exchange.path == "/moved":
            exchange.send(Answer(b"", status=307, headers=[("Location", "/hub")]))
        elif exchange.path == "/busy":
            exchange.send(Answer(b"busy", status=503, headers=[("Retry-After", "3600")]))
        elif exchange.path in STATUS and exchange.method == "POST":
            _start(self._subscribe(exchange))
        else:
            exchange.send(Answer(b"", status=404))

    async def _subscribe(self, exchange: Exchange) -> None:
        form = {name.decode(): values[0].decode() for name, values in exchange.request.args.items()}
        answer = Answer(b"said the hub\n", "text/plain", STATUS[exchange.path])
        if exchange.path == "/eager":
            await self._verify(form)
        exchange.send(answer)
        if exchange.path == "/hub":
            await self._verify(form)
        elif exchange.path == "/deny":
            reason = {"hub.mode": "denied", "hub.reason": "not \n for you"}
            await self._get(form["hub.callback"], reason | {"hub.topic": form["hub.topic"]})

    async def _verify(self, form: dict[str, str]) -> None:
        """Verify the request with the callback, and store the subscription if it confirms."""
        callback, mode = form["hub.callback"], form["hub.mode"]
        lease = form.get("lease") or form.get("hub.lease_seconds", "")
        former = self._subscriptions.get(callback)
        one = Subscription(form["hub.topic"], callback, form.get("hub.secret", ""), lease)
        one.asked, one.answers = (former.asked + 1, former.answers) if former else (1, [])
        status, text = await self._get(callback, {
            "hub.mode": mode, "hub.topic": one.topic, "hub.challenge": CHALLENGE,
            "hub.lease_seconds": lease,
        })  # fmt: skip
        one.answers.append(status)
        agreed = status == 200 and text == CHALLENGE.encode()
        if agreed:
            one.active = mode == "subscribe"
            self._subscriptions[callback] = one
        elif former is None:
            self._subscriptions[callback] = one

    async def _publish(self, exchange: Exchange, order: dict[str, Any]) -> None:
        """Deliver `body` to all subscribers of `topic`, signed by `method` ("": unsigned)."""
        body, replies = order["body"].encode("latin-1"), []
        for one in self._subscriptions.values():
            if one.topic != order["topic"] or not one.active:
                continue
            headers = {"Content-Type": ["application/rss+xml; charset=utf-8"]}
            if method := order["method"]:
                digest = hmac.digest(one.secret.encode(), body, method).hex()
                headers["X-Hub-Signature"] = [f"{method}={order.get('signature', digest)}"]
            status, _ = await self._request(b"POST", one.callback, headers, body)
            replies.append(status)
        _send_json(exchange, replies)

    async def _get(self, url: str, query: dict[str, str]) -> tuple[int, bytes]:
        before = dict(parse_qsl(url.partition("?")[2]))
        return await self._request(b"GET", f"{url}?{urlencode(before | query)}", {}, None)

    async def _request(
        self, method: bytes, url: str, headers: dict[str, list[str]], body: bytes | None
    ) -> tuple[int, bytes]:
        untyped: Any = FileBodyProducer
        producer = None if body is None else untyped(BytesIO(body))
        try:
            response = await self._agent.request(method, url.encode(), Headers(headers), producer)
            return response.code, await readBody(response)
        except (ConnectError, ResponseFailed) as error:
            return 0, str(error).encode()


def _start(work: Coroutine[Any, Any, None]) -> None:
    Deferred.fromCoroutine(work)


def _send_json(exchange: Exchange, value: object) -> None:
    exchange.send(Answer(json.dumps(value).encode(), "application/json"))


def main() -> None:
    """Serve until SIGTERM."""
    options = argparse.ArgumentParser(prog="python -m tests.site.hub", description=__doc__)
    options.add_argument("--port", type=int, default=0, help="port (0: any free port)")
    options.add_argument("--log", type=Path, help="request log, one JSON line per request")
    args = options.parse_args()
    serving.run(Hub(), RequestLog(args.log), args.port)


if __name__ == "__main__":
    main()
