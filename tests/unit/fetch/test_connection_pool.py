"""Idle connections: how many are kept, and which ones are closed."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock

from crawler.fetch.handler import MAX_IDLE_CONNECTIONS, BoundedPool

FEW = 5


class Connection:
    """An idle connection, which is its own transport."""

    state = "QUIESCENT"

    def __init__(self) -> None:
        self.transport = self
        self.is_open = True

    def loseConnection(self) -> None:  # noqa: N802 - Twisted's name
        self.is_open = False


def pool_of(clock: Any, hosts: int) -> tuple[BoundedPool, list[Connection]]:
    """Return a pool after one request to each of some hosts, and its connections."""
    pool, connections = BoundedPool(clock), [Connection() for _ in range(hosts)]
    for n, connection in enumerate(connections):
        pool._putConnection((b"https", b"%d.example" % n, 443), connection)
    return pool, connections


def test_oldest_connections_are_closed_beyond_the_limit() -> None:
    pool, connections = pool_of(Clock(), MAX_IDLE_CONNECTIONS + FEW)
    is_open = [connection.is_open for connection in connections]
    assert is_open == [False] * FEW + [True] * MAX_IDLE_CONNECTIONS
    assert len(pool._connections) == MAX_IDLE_CONNECTIONS


def test_connections_within_the_limit_are_closed_when_they_are_old() -> None:
    clock = Clock()
    pool, connections = pool_of(clock, FEW)
    assert all(connection.is_open for connection in connections)
    clock.advance(pool.cachedConnectionTimeout)
    assert not any(connection.is_open for connection in connections)
    assert not pool._connections
    assert not clock.getDelayedCalls()
