"""Run processes that share a MongoDB in every order of their commands, with a death at any of them.

Each process is a coroutine with a connection of its own. A `Stepper` in front of the server holds
each command until it is the process's turn, so one list of choices is one interleaving, and can be
repeated. `explore` tries all lists. Two interleavings that lead to the same documents, and in which
each process has sent and received the same messages, have the same futures: the second one is not
followed further.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import bson
from bson import ObjectId

HEADER = struct.Struct("<iiii")
OP_MSG = 2013
HELD = ("insert", "update", "delete", "find", "aggregate", "distinct", "findAndModify", "count")
WRITES = ("insert", "update", "delete", "findAndModify")
# Stages of an aggregation that read other collections.
JOINS = ("$lookup", "$unionWith", "$merge", "$out")
# Parts of messages that differ in each repetition.
VARYING = ("lsid", "$clusterTime", "operationTime", "txnNumber")
# Real times, as opposed to those of the samples, which are older.
RECENT = timedelta(days=1)


class Choice(NamedTuple):
    """One step of an interleaving: a process sends its next command, or dies before sending it."""

    process: int
    dies: bool = False


Interleaving = tuple[Choice, ...]


class Stepper:
    """A relay that holds each command of one client until `step`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.history: list[str] = []
        self.command = Command(None, is_write=True)
        self._labels: dict[ObjectId, str] = {}
        self._turn: asyncio.Future[None] | None = None
        self._changed = asyncio.Event()
        self._is_armed = False
        self._task: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def listening(self, socket: Path) -> AsyncIterator[Stepper]:
        """Relay connections to a server while the block runs."""

        async def connected(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
            far, there = await asyncio.open_unix_connection(str(socket))
            ways = [
                asyncio.create_task(way)
                for way in (self._pump(near, there, self._hold), self._pump(far, back, self._note))
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                there.close()
                back.close()

        server = await asyncio.start_server(connected, "127.0.0.1")
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def start(self, work: Awaitable[Any], labels: dict[ObjectId, str]) -> None:
        """Start a process, up to its first command."""
        self._labels, self._is_armed = labels, True
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(lambda _: self._changed.set())
        await self._settle()

    @property
    def has_ended(self) -> bool:
        """Return whether the process has no further commands."""
        return self._task is None or self._task.done()

    async def step(self) -> None:
        """Send the process's command, and wait for its next one or its end."""
        assert self._turn is not None
        turn, self._turn = self._turn, None
        turn.set_result(None)
        await self._settle()

    async def die(self) -> None:
        """End the process without sending its command."""
        assert self._task is not None
        self._is_armed, turn = False, self._turn
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if turn is not None and not turn.done():
            turn.cancel()
        self._turn = None

    async def result(self) -> None:
        """Raise the error of an ended process."""
        self._is_armed = False
        if self._task is not None:
            await self._task

    async def _settle(self) -> None:
        while self._turn is None and not self.has_ended:
            self._changed.clear()
            await self._changed.wait()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        each: Callable[[bytes, bytes], Awaitable[None]],
    ) -> None:
        while True:
            try:
                head = await reader.readexactly(HEADER.size)
                rest = await reader.readexactly(HEADER.unpack(head)[0] - HEADER.size)
            except (asyncio.IncompleteReadError, OSError):
                return
            await each(head, rest)
            writer.write(head + rest)
            await writer.drain()

    async def _hold(self, head: bytes, rest: bytes) -> None:
        if not self._is_armed or HEADER.unpack(head)[3] != OP_MSG:
            return
        message = _message(rest)
        name = next(iter(message))
        if name not in HELD:
            return
        is_joined = name == "aggregate" and any(each in str(message) for each in JOINS)
        self.command = Command(None if is_joined else message[name], is_write=name in WRITES)
        self._write(message)
        self._turn = asyncio.get_running_loop().create_future()
        self._changed.set()
        await self._turn

    async def _note(self, head: bytes, rest: bytes) -> None:
        if self._is_armed and HEADER.unpack(head)[3] == OP_MSG:
            self._write(_message(rest))

    def _write(self, message: Any) -> None:
        self.history.append(repr(plain(message, self._labels, self.name)))


def _message(rest: bytes) -> dict[str, Any]:
    """Return a message with the documents of its sequences."""
    message: dict[str, Any] = {}
    at, end = 4, len(rest)
    while at < end:
        kind, at = rest[at], at + 1
        size = struct.unpack_from("<i", rest, at)[0]
        if kind == 0:
            message = bson.decode(rest[at : at + size]) | message
        else:
            name, _, documents = rest[at + 4 : at + size].partition(b"\0")
            message[name.decode()] = bson.decode_all(documents)
        at += size
    return {name: value for name, value in message.items() if name not in VARYING}


def plain(value: Any, labels: dict[ObjectId, str], name: str = "") -> Any:
    """Return a value with ids replaced by who used them first, and times of today by a constant."""
    if isinstance(value, dict):
        return {key: plain(each, labels, name) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each, labels, name) for each in value]
    if isinstance(value, ObjectId):
        own = sum(label.startswith(name) for label in labels.values())
        return labels.setdefault(value, f"{name}.{own}")
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return "now" if datetime.now(UTC) - moment < RECENT else str(moment)
    return value


@dataclass
class Explored:
    """What `explore` tried.

    states:   different states, each with the messages of all processes
    endings:  interleavings followed to the end
    failures: problems found at the end of an interleaving, by interleaving
    """

    states: int = 0
    endings: int = 0
    failures: dict[Interleaving, str] = field(default_factory=dict)


class Command(NamedTuple):
    """A command that a process is about to send. collection: None for several."""

    collection: str | None
    is_write: bool


def commute(first: Choice, second: Choice, commands: Mapping[int, Command]) -> bool:
    """Return whether two steps of different processes have the same effect in either order."""
    if first.process == second.process:
        return False
    # The others do not notice a death.
    if first.dies or second.dies:
        return True
    one, other = commands[first.process], commands[second.process]
    if not one.is_write and not other.is_write:
        return True
    return None not in (one.collection, other.collection) and one.collection != other.collection


@dataclass(frozen=True)
class Trial:
    """What is tried in all interleavings.

    begin:       restores the documents, and returns the processes
    documents:   returns all documents that the processes share
    after_death: repeats the work of a process that died, once the others have ended
    problem:     returns what is wrong at the end; None: nothing
    are_alike:   all processes do the same work, so states that differ only in who is who are one
    """

    begin: Callable[[], Awaitable[list[Awaitable[Any]]]]
    documents: Callable[[], Awaitable[Any]]
    after_death: Callable[[int], Awaitable[None]]
    problem: Callable[[], Awaitable[str | None]]
    are_alike: bool = False


@dataclass
class Switches:
    """The switches from a process to another one, although it could have continued."""

    count: int = 0
    last: int | None = None

    def after(self, choice: Choice, running: Sequence[int]) -> int:
        """Return the number of switches after a further step. A death is none."""
        is_switch = self.last in running and choice.process != self.last and not choice.dies
        return self.count + is_switch

    def note(self, choice: Choice, running: Sequence[int]) -> None:
        """Count a step."""
        self.count = self.after(choice, running)
        if not choice.dies:
            self.last = choice.process

    def key(self, order: tuple[int, ...]) -> bytes:
        """Return what a state has in addition: different numbers leave different choices."""
        last = -1 if self.last is None else order.index(self.last)
        return f" {self.count} {last}".encode()


@dataclass
class _Explorer:
    """The states that have been reached, and the interleavings still to follow."""

    steppers: Sequence[Stepper]
    trial: Trial
    max_switches: int | None
    # The steps that were not tried in a state, because another interleaving has the same effect.
    seen: dict[bytes, frozenset[Choice]] = field(default_factory=dict)
    waiting: list[tuple[Interleaving, frozenset[Choice]]] = field(
        default_factory=lambda: [((), frozenset())]
    )

    async def follow(self) -> tuple[Interleaving, int | None, bool]:
        """Follow the next interleaving until it ends, or reaches a state seen before.

        Returns the interleaving, the process that died, and whether the end was not seen before.
        """
        given, sleeping = self.waiting.pop()
        labels: dict[ObjectId, str] = {}
        for stepper, work in zip(self.steppers, await self.trial.begin(), strict=True):
            stepper.history.clear()
            await stepper.start(work, labels)
        dead: int | None = None
        done: list[Choice] = []
        switches = Switches()
        for choice in given:
            switches.note(choice, self._running(dead))
            dead = await self._take(choice, dead)
            done.append(choice)
        shared: str | None = None
        while True:
            shared = shared or repr(plain(await self.trial.documents(), labels))
            running, (digest, order) = self._running(dead), self._digest(dead, shared)
            if self.max_switches is not None:
                digest += switches.key(order)
            is_new = digest not in self.seen
            choices = self._untried(digest, order, running, sleeping, dead)
            if self.max_switches is not None:
                # Steps that commute with a step beyond the limit must not be left out.
                sleeping = frozenset()
                choices = [
                    each for each in choices
                    if switches.after(each, running) <= self.max_switches
                ]  # fmt: skip
            if not choices:
                break
            commands = {number: self.steppers[number].command for number in running}
            for at, other in enumerate(choices[1:], 1):
                asleep = sleeping.union(choices[:at] if self.max_switches is None else ())
                kept = frozenset(each for each in asleep if commute(each, other, commands))
                self.waiting.append(((*done, other), kept))
            choice = choices[0]
            sleeping = frozenset(each for each in sleeping if commute(each, choice, commands))
            if commands[choice.process].is_write:
                shared = None
            switches.note(choice, running)
            dead = await self._take(choice, dead)
            done.append(choice)
        for number in running:
            await self.steppers[number].die()
        return tuple(done), dead, is_new and not running

    async def _take(self, choice: Choice, dead: int | None) -> int | None:
        """Take a step; return the process that has died, if any."""
        if choice.dies:
            await self.steppers[choice.process].die()
            return choice.process
        await self.steppers[choice.process].step()
        return dead

    def _running(self, dead: int | None) -> list[int]:
        return [n for n, each in enumerate(self.steppers) if n != dead and not each.has_ended]

    def _digest(self, dead: int | None, shared: str) -> tuple[bytes, tuple[int, ...]]:
        """Return a digest of a state, and the order of the processes in which it was computed."""
        numbers = range(len(self.steppers))
        orders = list(permutations(numbers)) if self.trial.are_alike else [tuple(numbers)]
        return min((self._digest_in(order, dead, shared), order) for order in orders)

    def _digest_in(self, order: tuple[int, ...], dead: int | None, shared: str) -> bytes:
        state = repr((
            [self.steppers[number].history for number in order],
            None if dead is None else order.index(dead),
            shared,
        ))  # fmt: skip
        # Ids are named after the process that used them first.
        places = {self.steppers[number].name: at for at, number in enumerate(order)}
        named = re.sub(r"\bw\d+(?=\.)", lambda match: f"w{places[match[0]]}", state)
        return hashlib.blake2b(named.encode(), digest_size=16).digest()

    def _untried(
        self, digest: bytes, order: tuple[int, ...], running: list[int],
        sleeping: frozenset[Choice], dead: int | None,
    ) -> list[Choice]:  # fmt: skip
        """Return the steps to try in a state, and note which ones are left out."""
        choices = [Choice(number) for number in running]
        if dead is None:
            writing = [number for number in running if self.steppers[number].command.is_write]
            choices += [Choice(number, dies=True) for number in writing]
        ordered = frozenset(Choice(order.index(each.process), each.dies) for each in sleeping)
        before = self.seen.get(digest)
        self.seen[digest] = ordered if before is None else before & ordered
        return [
            each for each in choices
            if each not in sleeping
            and (before is None or Choice(order.index(each.process), each.dies) in before)
        ]  # fmt: skip


async def explore(
    steppers: Sequence[Stepper],
    trial: Trial,
    max_switches: int | None = None,
    max_failures: int = 5,
) -> Explored:
    """Run processes in all interleavings of their commands, in which at most one of them dies.

    max_switches: maximum number of switches from a process to another one, although it could have
                  continued (iterative context bounding: Musuvathi and Qadeer, PLDI 2007); None: all

    Of interleavings that differ only in the order of steps that commute, one is followed (sleep
    sets: Godefroid, Partial-Order Methods for the Verification of Concurrent Systems, 1996). A
    process that dies before a read has the same effects as one that dies before its next write.
    """
    explorer, result = _Explorer(steppers, trial, max_switches), Explored()
    while explorer.waiting and len(result.failures) < max_failures:
        interleaving, dead, is_end = await explorer.follow()
        if not is_end:
            continue
        for number, stepper in enumerate(steppers):
            if number != dead:
                await stepper.result()
        if dead is not None:
            await trial.after_death(dead)
        result.endings += 1
        if (wrong := await trial.problem()) is not None:
            result.failures[interleaving] = wrong
    result.states = len(explorer.seen)
    return result
