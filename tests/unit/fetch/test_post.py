"""POST requests to servers that others name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from crawler.fetch.post import Answer, post, reason_of


def answered(sent: bytes, addresses: Sequence[str] = ("127.0.0.1",), max_bytes: int = 10) -> Answer:
    """Post to a server that sends these bytes, and closes the connection."""

    async def work() -> Answer:
        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\nform")
            writer.write(sent)
            writer.close()

        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            url = f"http://hub.example:{port}/a?b=c"
            return await post(url, {"user-agent": "Größe"}, b"form", addresses, max_bytes)

    return asyncio.run(work())


def test_the_beginning_of_an_error_is_read() -> None:
    body = b"too many subscriptions"
    answer = answered(b"HTTP/1.1 403 Forbidden\r\nX-Reason: a\r\nContent-Length: 22\r\n\r\n" + body)
    assert (answer.status, answer.headers["x-reason"], answer.text) == (403, "a", "too many s")


def test_an_incomplete_error_is_an_answer() -> None:
    answer = answered(b"HTTP/1.1 500 Error\r\nContent-Length: 100\r\n\r\noops")
    assert (answer.status, answer.text) == (500, "oops")


def test_the_next_address_is_tried() -> None:
    answer = answered(b"HTTP/1.1 202 Accepted\r\n\r\n", ["127.0.0.2", "127.0.0.1"])
    assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize(
    ("sent", "addresses", "reason"),
    [
        (b"220 mail.example\r\n\r\n", ["127.0.0.1"], "invalid HTTP response: "),
        (b"", ["127.0.0.1"], "the receiver closed the connection without a response"),
        (b"", ["127.0.0.2"], "connection failed: Connection refused"),
        (b"", [], "connection failed: the host has no address"),
    ],
)
def test_other_failures_have_a_reason(sent: bytes, addresses: list[str], reason: str) -> None:
    with pytest.raises(OSError) as raised:  # noqa: PT011 - its reason is checked below
        answered(sent, addresses)
    assert reason_of(raised.value).startswith(reason)
