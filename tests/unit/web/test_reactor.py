"""HTTP connections of commands that serve: time limits for requests, and client addresses."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.web.resource import Resource
from twisted.web.server import Request, Site

from crawler.web.server import BODY_SECONDS, HEAD_SECONDS, Bodiless, Channel, client_address

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"


class Page(Resource):
    isLeaf = True  # noqa: N815 - Twisted's name

    def render(self, request: Request) -> bytes:
        return b"a page"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def transport() -> StringTransport:
    return StringTransport()


@pytest.fixture
def channel(clock: Clock, transport: StringTransport) -> Channel:
    site = Site(Page(), requestFactory=Bodiless, timeout=30, reactor=clock)
    site.protocol = Channel
    channel: Channel = site.buildProtocol(None)
    channel.makeConnection(transport)
    return channel


def drip(channel: Channel, clock: Clock, seconds: float) -> None:
    """Send one byte per second."""
    for _ in range(int(seconds)):
        channel.dataReceived(b"x")
        clock.advance(1)


def test_a_head_has_its_time_however_often_a_byte_comes(
    channel: Channel, clock: Clock, transport: StringTransport
) -> None:
    channel.dataReceived(b"GET / HTTP/1.1\r\nX-Slow: ")
    drip(channel, clock, HEAD_SECONDS - 1)
    assert not transport.disconnected
    drip(channel, clock, 1)
    assert transport.disconnected


def test_a_body_has_its_time_from_the_head_on(
    channel: Channel, clock: Clock, transport: StringTransport
) -> None:
    channel.dataReceived(HEAD)
    drip(channel, clock, BODY_SECONDS - 1)
    assert not transport.disconnected
    drip(channel, clock, 1)
    assert transport.disconnected


def test_the_next_request_has_a_time_of_its_own(
    channel: Channel, clock: Clock, transport: StringTransport
) -> None:
    for _ in range(3):
        channel.dataReceived(HEAD[:20])
        clock.advance(HEAD_SECONDS - 1)
        channel.dataReceived(HEAD[20:] + b"x" * 100)
        assert not transport.disconnected
    assert transport.value().count(b"HTTP/1.1 200") == 3
    clock.advance(HEAD_SECONDS + 1)
    assert not transport.disconnected, "no request has started"


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::2:0:0:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_who_has_connected(host: str, place: str) -> None:
    assert client_address(host) == place
