"""Twisted's reactor for a command that serves: one coroutine is its whole life; and its ports."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.internet import asyncioreactor
from twisted.internet.error import CannotListenError
from twisted.protocols.policies import WrappingFactory
from twisted.web.server import Request

from crawler.errors import ConfigError

MOST_CONNECTIONS = 64
Result = TypeVar("Result")


def run_in_reactor(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that needs Twisted's reactor; raises what it raises."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    asyncioreactor.install(loop)  # type: ignore[no-untyped-call]
    from twisted.internet import reactor as installed

    reactor: Any = installed
    task = loop.create_task(work)
    task.add_done_callback(lambda _: reactor.stop())
    reactor.run(installSignalHandlers=False)
    return task.result()


class Bodiless(Request):
    """A request whose body is thrown away as it comes: it fills neither memory nor a folder."""

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - Twisted's name
        """Begin a request; Twisted would open a file for a long body."""
        super().gotLength(0)  # type: ignore[no-untyped-call]

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Throw a part of the body away."""


class Bounded(WrappingFactory):
    """Takes so many connections and no more; the rest is closed at once."""

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802 - Twisted's name
        """A protocol for a connection; None closes it."""
        if len(self.protocols) >= MOST_CONNECTIONS:
            return None
        return super().buildProtocol(addr)


def open_port(reactor: Any, port: int, site: Any, bind: str, option: str) -> Any:
    """The listening port of a site; raises ConfigError, which names the option, where none can be.

    bind: an IP address of this machine
    """
    factory = Bounded(site)  # type: ignore[no-untyped-call]
    try:
        return reactor.listenTCP(port, factory, interface=bind)
    except (CannotListenError, OSError) as error:
        reason = getattr(error, "socketError", error)
        reason = getattr(reason, "strerror", None) or reason
        raise ConfigError(f"{option}: {reason}") from None


def url_of(listening: Any) -> str:
    """Where a listening port is found."""
    host = listening.getHost()
    name = f"[{host.host}]" if ":" in host.host else host.host
    return f"http://{name}:{host.port}/"
