"""The fault proxy: forwarding, refusing, dropping data, and recovery."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.relay import Relay

SHORT_SECONDS = 0.2


@pytest.fixture
def relay() -> Iterator[Relay]:
    """Yield a proxy in front of a server that echoes its input."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        server.listen()
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with Relay(Path(folder, "s")) as made:
            yield made
        server.shutdown(socket.SHUT_RDWR)


def serve(server: socket.socket) -> None:
    try:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()
    except OSError:
        return


def echo(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(100):
            connection.sendall(data)


def connected(relay: Relay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port), timeout=10)


def echoed(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(100)


def is_cut(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def test_forwards_data(relay: Relay) -> None:
    with connected(relay) as one, connected(relay) as two:
        assert (echoed(one, b"one"), echoed(two, b"two")) == (b"one", b"two")


def test_refuses_connections(relay: Relay) -> None:
    with connected(relay) as connection:
        assert echoed(connection, b"before") == b"before"
        with relay.refusing():
            with pytest.raises(ConnectionRefusedError):
                connected(relay)
            assert is_cut(connection)
    with connected(relay) as connection:
        assert echoed(connection, b"after") == b"after"


def test_swallows_data(relay: Relay) -> None:
    with connected(relay) as old:
        assert echoed(old, b"before") == b"before"
        with relay.swallowing(), connected(relay) as new:
            for connection in (old, new):
                connection.settimeout(SHORT_SECONDS)
                with pytest.raises(TimeoutError):
                    echoed(connection, b"into the void")
        old.settimeout(10)
        assert is_cut(old)
    with connected(relay) as connection:
        assert echoed(connection, b"after") == b"after"
