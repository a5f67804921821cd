"""Names resolved through the gate, at the moment of each connection."""

from __future__ import annotations

import ipaddress
from typing import Any

from twisted.internet.interfaces import (
    IHostnameResolver,
    IReactorPluggableNameResolver,
    IResolutionReceiver,
)
from zope.interface import implementer  # type: ignore[import-untyped]

from crawler.addresses import Address
from crawler.middlewares.gate import Passage


@implementer(IReactorPluggableNameResolver)
class GuardedReactor:
    """Twisted's reactor, with names resolved through a passage."""

    def __init__(self, reactor: Any, passage: Passage) -> None:
        self._reactor = reactor
        self._passage = passage

    @property
    def nameResolver(self) -> Any:  # noqa: N802 - Twisted's name
        """The reactor's resolver of this moment, guarded."""
        return GuardedResolver(self._reactor.nameResolver, self._passage)

    def installNameResolver(self, resolver: Any) -> Any:  # noqa: N802
        """As of the reactor."""
        return self._reactor.installNameResolver(resolver)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


@implementer(IHostnameResolver)
class GuardedResolver:
    """Resolves names, and tells only the addresses that are let through."""

    def __init__(self, resolver: Any, passage: Passage) -> None:
        self._resolver = resolver
        self._passage = passage

    def resolveHostName(self, resolutionReceiver: Any, *names: Any, **more: Any) -> Any:  # noqa: N802, N803
        """As Twisted's interface has it."""
        sieve = Sieve(resolutionReceiver, self._passage)
        return self._resolver.resolveHostName(sieve, *names, **more)


@implementer(IResolutionReceiver)
class Sieve:
    """Waits for all addresses of a name before it hands on those that are let through."""

    def __init__(self, receiver: Any, passage: Passage) -> None:
        self._receiver = receiver
        self._passage = passage
        self._found: dict[Address, Any] = {}

    def resolutionBegan(self, resolutionInProgress: Any) -> None:  # noqa: N802, N803
        """As Twisted's interface has it."""
        self._receiver.resolutionBegan(resolutionInProgress)

    def addressResolved(self, address: Any) -> None:  # noqa: N802
        """Keep one."""
        self._found[ipaddress.ip_address(address.host.partition("%")[0])] = address

    def resolutionComplete(self) -> None:  # noqa: N802
        """Hand on what may be connected to."""
        for address in self._passage.let_through(list(self._found)):
            self._receiver.addressResolved(self._found[address])
        self._receiver.resolutionComplete()
