"""The web server: connection and request limits, command-line options, and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import socket
import sys
import time
from typing import Any

import httpx
import pytest

from crawler.web import server
from crawler.web.options import WebOptions
from crawler.web.server import Limits
from tests.integration.harness import Db, Freshet
from tests.integration.inside import in_json, run
from tests.integration.web.browser import put_user
from tests.integration.web.served import Served


def test_serves_until_sigterm(freshet: Freshet) -> None:
    served = Served(freshet)
    assert httpx.get(served.url, timeout=60).status_code == 200
    head = httpx.head(served.url)
    assert (head.status_code, head.content) == (200, b"")
    assert "server" not in head.headers
    assert served.stop() == (0, "")


def test_port_in_use_is_a_one_line_error(freshet: Freshet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run(freshet, "web", "--port", port)
    assert done.code == 1
    assert done.complaint == (
        f"scrapy web: --host 127.0.0.1 --port {port}: Address already in use. Another program "
        "listens there; choose another port"
    )


@pytest.mark.parametrize(
    ("words", "env", "begins"),
    [
        (("--host", "0.0.0.0"), {}, "--host 0.0.0.0: other machines could change everything"),
        (("--host", "::"), {}, "--host ::: other machines"),
        (("--trusted-proxy", "127.0.0.1"), {}, "--trusted-proxy: anyone behind the proxy"),
        ((), {"FRESHET_WEB_HOSTS": "freshet.example"}, "FRESHET_WEB_HOSTS: other machines"),
        (("--host", "example"), {}, "--host: 'example' is not an IP address. Use 127.0.0.1"),
        (("--port", "x"), {}, "--port: 'x' is not a port. Use a number from 1024 to 65535"),
        (("--port", "65536"), {}, "--port: '65536' is not a port"),
        (("--port", "-1"), {}, "--port: '-1' is not a port"),
        (("--host", "fe80::1"), {}, "--host fe80::1: "),
        (("--root-path", "a b"), {}, "--root-path: 'a b' is not a path"),
        (("--trusted-proxy", "x"), {}, "--trusted-proxy: 'x' is not an IP address or network"),
    ],
)
def test_unsafe_or_invalid_options_are_one_line_errors(
    freshet: Freshet, words: tuple[str, ...], env: dict[str, str], begins: str
) -> None:
    done = run(freshet, "web", "--port", "0", *words, **env)
    assert done.code == 1
    assert done.complaint.startswith(f"scrapy web: {begins}")


def test_public_host_requires_users(freshet: Freshet, database: Db) -> None:
    put_user(database, "anna")
    served = Served(freshet, "--host", "0.0.0.0")
    assert httpx.get(f"http://127.0.0.1:{served.port}/", timeout=60).status_code == 303
    assert served.stop()[0] == 0


def test_users_and_tokens_on_the_command_line(
    freshet: Freshet, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(password: str, *words: str) -> tuple[int | None, str]:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", io.StringIO(password))
            done = run(freshet, "web", "user", *words, "--password-stdin")
        return done.code, done.err

    code, err = send("short\n", "add", "anna")
    assert (code, "the password has 5 characters" in err) == (1, True)
    assert send("correct horse battery\n", "add", "Anna") == (0, "")
    assert "user exists: 'anna'" in send("correct horse battery\n", "add", "anna")[1]
    assert "invalid user name" in run(freshet, "web", "user", "add", "a b").complaint
    assert "no terminal" in run(freshet, "web", "user", "add", "bob").complaint
    before = database.users.find_one({"_id": "anna"})["password_hash"]
    assert send("another long password\n", "passwd", "anna") == (0, "")
    assert database.users.find_one({"_id": "anna"})["password_hash"] != before
    (listed,) = in_json(freshet, "web", "user", "list")
    assert (listed["name"], listed["role"]) == ("anna", "viewer")
    assert run(freshet, "web", "user", "role", "anna", "editor").out == "anna is now editor\n"
    made = in_json(freshet, "web", "token", "add", "anna", "--label", "x", "--scope", "write")
    assert made["secret"].startswith("freshet_")
    (token,) = in_json(freshet, "web", "token", "list")
    assert (token["id"], token["scopes"]) == (made["token"]["id"], ["read", "write"])
    assert made["token"] == token
    assert "anna" in run(freshet, "web", "token", "list", "anna").out
    assert "user not found: 'bob'" in run(freshet, "web", "token", "list", "bob").complaint
    assert run(freshet, "web", "token", "revoke", token["id"]).code == 0
    assert "token not found" in run(freshet, "web", "token", "revoke", token["id"]).complaint
    assert "Re-run with --yes" in run(freshet, "web", "user", "remove", "anna").complaint
    assert run(freshet, "web", "user", "remove", "anna", "--yes").code == 0
    assert "user not found: 'anna'" in run(
        freshet, "web", "user", "remove", "anna", "--yes"
    ).complaint  # fmt: skip
    actions = [row["action"] for row in database.audit.find().sort([("at", 1), ("_id", 1)])]
    assert actions == [
        "web user add", "web user passwd", "web user role", "web token add", "web token revoke",
        "web user remove",
    ]  # fmt: skip
    assert run(freshet, "web", "user").code == 2


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, then respond with 100 MB for /big and five bytes for other paths."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    # As in any app that looks something up, the server may read on before the response.
    await asyncio.sleep(0.001)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    parts = 100 if scope["path"] == "/big" else 1
    for number in range(parts):
        body = b"x" * (1_000_000 if parts > 1 else 5)
        more = number < parts - 1
        await send({"type": "http.response.body", "body": body, "more_body": more})


def serve(work: Any, **limits: float) -> Any:
    """Serve `hello`, and return the result of work(port)."""
    options = WebOptions(port=0)

    async def main() -> Any:
        listener = server.listen(options)
        async with server.served(hello, options, listener, Limits(**limits)):
            return await work(listener.getsockname()[1])

    return asyncio.run(main())


async def until_closed(reader: asyncio.StreamReader, seconds: float = 10.0) -> tuple[bytes, float]:
    """Read until the connection is closed; return the data and the seconds it took."""
    began, data = time.monotonic(), b""
    try:
        async with asyncio.timeout(seconds):
            data = await reader.read()
    except ConnectionError:
        pass
    return data, time.monotonic() - began


def test_accepted_connections_use_tcp_nodelay() -> None:
    listener = server.listen(WebOptions(port=0))
    with listener, socket.create_connection(listener.getsockname()[:2]):
        listener.setblocking(True)
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nHost: a\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab",
    ],
)
def test_slow_clients_are_disconnected_while_sending(
    start: bytes,
) -> None:
    async def work(port: int) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def trickle() -> None:
            writer.write(start)
            while start:
                await asyncio.sleep(0.1)
                writer.write(b"X")

        trickling = asyncio.create_task(trickle())
        _, seconds = await until_closed(reader)
        trickling.cancel()
        writer.close()
        return seconds

    seconds = serve(work, idle_seconds=0.6, head_seconds=0.6, body_seconds=0.6)
    assert 0.4 < seconds < 3


def test_client_that_does_not_read_is_disconnected() -> None:
    async def work(port: int) -> int:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.sleep(1.5)
            client.setblocking(False)
            received = 0
            try:
                while data := client.recv(1 << 20):
                    received += len(data)
            except ConnectionError:
                return received
            return received

    assert serve(work, read_seconds=0.5) < 100_000_000


def test_large_headers_are_refused() -> None:
    async def work(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000)
        data, _ = await until_closed(reader)
        writer.close()
        return data

    assert serve(work)[:12] in (b"HTTP/1.1 400", b"")


def test_oldest_idle_connection_is_closed_at_the_limit() -> None:
    async def work(port: int) -> tuple[bytes, bytes]:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        first, _ = await until_closed(opened[0][0], 5)
        reader, writer = opened[3]
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await reader.readline()
        for _, each in opened:
            each.close()
        return first, answer

    closed, answer = serve(work, per_address=3)
    assert closed == b""
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/", "/big"])
def test_clients_that_never_read_do_not_lock_others_out(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()

    async def flood(port: int, host: str) -> list[socket.socket]:
        loop, sockets = asyncio.get_running_loop(), []
        for _ in range(8):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            client.bind((host, 0))
            await loop.sock_connect(client, ("127.0.0.1", port))
            sockets.append(client)
        for _ in range(40):
            for client in sockets:
                with contextlib.suppress(OSError):
                    client.send(request * 2000)
            await asyncio.sleep(0.02)
        return sockets

    async def work(port: int) -> list[bytes]:
        sockets = [*await flood(port, "127.0.0.2"), *await flood(port, "127.0.0.3")]
        answers = []
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answers.append((await until_closed(reader, 20))[0][:12])
            writer.close()
        for client in sockets:
            client.close()
        return answers

    with caplog.at_level(logging.WARNING, "crawler.web.server"):
        server.LimitedProtocol._next_log = 0.0
        answers = serve(work, connections=16, per_address=8)
    assert answers == [b"HTTP/1.1 200"] * 5
    assert "Too many connections: closed a connection of 127.0.0." in caplog.text


def test_clients_that_are_always_busy_do_not_lock_others_out() -> None:
    request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            await asyncio.sleep(5)
        await hello(scope, receive, send)

    async def work() -> bytes:
        options = WebOptions(port=0)
        listener = server.listen(options)
        limits = Limits(connections=8, per_address=4, stop_seconds=1)
        async with server.served(slow, options, listener, limits) as hurry:
            port = listener.getsockname()[1]
            busy = []
            for host in ("127.0.0.2", "127.0.0.3"):
                for _ in range(4):
                    pair = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
                    pair[1].write(request)
                    busy.append(pair)
            await asyncio.sleep(0.3)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answer, _ = await until_closed(reader, 4)
            for _, each in [*busy, (reader, writer)]:
                each.close()
            hurry()
            return answer

    assert asyncio.run(work()).startswith(b"HTTP/1.1 200")


def exchange(port: int, sent: bytes, more: bytes = b"") -> bytes:
    """Send bytes to the app at a port, in two parts; return all that it responds with."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(sent)
        if more:
            time.sleep(0.3)
            with contextlib.suppress(ConnectionError):
                client.sendall(more)
        with contextlib.suppress(ConnectionError):
            while data := client.recv(65_536):
                received += data
    return received


POST_HEAD = b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def test_ambiguous_and_broken_bodies_leave_no_trace(freshet: Freshet, database: Db) -> None:
    put_user(database, "anna")
    served = Served(freshet)
    port = served.port
    both = CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n"
    following = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for sent in (
        POST_HEAD + FORM + both + following,
        POST_HEAD.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n" + CHUNKED
        + b"\r\n0\r\n\r\n" + following,
    ):  # fmt: skip
        answer = exchange(port, sent)
        assert answer.startswith(b"HTTP/1.1 400"), answer
        assert answer.count(b"HTTP/1.1 ") == 1, "the connection was used again"
    chunk = POST_HEAD + FORM + CHUNKED + b"\r\n5\r\nhello\r\n"
    assert exchange(port, chunk, b"zz\r\n").startswith(b"HTTP/1.1 400")
    assert exchange(port, chunk + b"zz\r\n")[:12] == b"HTTP/1.1 400"
    # The response to a chunked body of an unknown path may have been sent before it ends.
    exchange(port, chunk.replace(b"/sign-in", b"/nothing"), b"zz\r\n")
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(POST_HEAD + FORM + b"Content-Length: 99\r\n\r\nx")
        time.sleep(0.2)
    time.sleep(0.2)
    assert httpx.get(f"{served.url}sign-in", timeout=60).status_code == 200
    assert served.stop() == (0, "")


def test_keep_alive_and_pipelined_requests_are_answered() -> None:
    async def work(port: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 3)
        await asyncio.sleep(0.3)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        data, _ = await until_closed(reader)
        writer.close()
        return data.count(b"HTTP/1.1 200")

    assert serve(work) == 4


def test_pipelined_requests_wait_at_the_client() -> None:
    requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 10_000

    def send(port: int) -> int:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            sent, until = 0, time.monotonic() + 3
            while time.monotonic() < until and sent < 100_000_000:
                with contextlib.suppress(BlockingIOError):
                    sent += client.send(requests)
                with contextlib.suppress(BlockingIOError):
                    client.recv(1 << 20)
            return sent

    # What was sent and not answered is in the buffers of the kernel, a few megabytes.
    assert serve(lambda port: asyncio.to_thread(send, port)) < 30_000_000


def test_shutdown_finishes_requests_in_progress() -> None:
    async def work() -> bytes:
        options = WebOptions(port=0)
        listener = server.listen(options)
        port = listener.getsockname()[1]
        async with server.served(hello, options, listener):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
            await asyncio.sleep(0.2)
            asyncio.get_running_loop().call_later(0.3, writer.write, b"b")
        data = await reader.read()
        writer.close()
        return data

    assert asyncio.run(work()).startswith(b"HTTP/1.1 200")
