"""POST requests to servers that others name: webhooks of notifications, and WebSub hubs.

A request connects to addresses that the guard has checked, without a proxy or a second DNS query.
It verifies the certificate, follows no redirect, and reads only the beginning of an answer. The
caller limits its time. Not urllib: it resolves the name itself, and a thread cannot be cancelled.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

MAX_HEAD_BYTES = 16_384
# Time to connect to one address.
CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request.

    headers: by name in lower case
    body:    its beginning; empty unless the status is an error or a redirect
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """Return the beginning of the body as text."""
        return self.body.decode("utf-8", "replace")


class InvalidAnswer(OSError):
    """The server did not respond with HTTP."""


async def post(
    url: str, headers: Mapping[str, str], body: bytes, addresses: Sequence[str], max_bytes: int
) -> Answer:
    """Send a body; raises OSError, whose reason `reason_of` returns.

    url:       ASCII, without user name and password
    addresses: addresses of its host, tried in this order
    max_bytes: number of bytes of the answer's body to read
    """
    parts = urlsplit(url)
    is_tls = parts.scheme.lower() == "https"
    port = parts.port or (443 if is_tls else 80)
    reader, writer = await _connected(addresses, port, parts.hostname if is_tls else None)
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    own = {"host": parts.netloc, "connection": "close", "content-length": str(len(body))}
    sent = [(name.encode(), value.encode()) for name, value in {**own, **headers}.items()]
    try:
        for part in (
            h11.Request(method="POST", target=target, headers=sent),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            writer.write(connection.send(part) or b"")
        await writer.drain()
        return await _read(connection, reader, max_bytes)
    except h11.RemoteProtocolError as error:
        raise InvalidAnswer(f"invalid HTTP response: {error}") from None
    finally:
        writer.transport.abort()


async def _connected(
    addresses: Sequence[str], port: int, tls_name: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers. tls_name: in the certificate; None: no TLS."""
    context = ssl.create_default_context() if tls_name else None
    problem = OSError("the host has no address")
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(
                    address, port, limit=MAX_HEAD_BYTES, ssl=context, server_hostname=tls_name
                )
        except ssl.SSLError:
            raise
        except TimeoutError:
            problem = OSError(f"no answer within {CONNECT_SECONDS:g} s")
        except OSError as error:
            problem = error
    raise problem


async def _read(connection: h11.Connection, reader: asyncio.StreamReader, max_bytes: int) -> Answer:
    response, body = None, bytearray()
    while len(body) < max_bytes:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if not (data := await reader.read(MAX_HEAD_BYTES)):
                break
            connection.receive_data(data)
        elif isinstance(event, h11.Response):
            response = event
            if event.status_code < 300:
                break
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            break
    if response is None:
        raise InvalidAnswer("the receiver closed the connection without a response")
    answered = {name.decode(): value.decode("latin-1") for name, value in response.headers}
    return Answer(response.status_code, answered, bytes(body[:max_bytes]))


def reason_of(error: Exception) -> str:
    """Return why a connection or an exchange failed, in a few words."""
    if isinstance(error, InvalidAnswer):
        return str(error)
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    number = getattr(error, "errno", None)
    # asyncio's errors have the address in place of the reason.
    if number and text.startswith("Connect call failed"):
        text = os.strerror(number)
    return f"connection failed: {text}"
