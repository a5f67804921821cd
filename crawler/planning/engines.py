"""Engines run the steps of a replan on shards: in processes of this machine, or on a Dask cluster.

Both start by reading: each source, such as a range of targets, is read once and divided among the
shards. If a process or worker of the cluster is lost, the replan fails; no step is repeated,
because the database has changed since it was read.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any, Protocol, TypeVar

from crawler.errors import ConfigError, FreshetError
from crawler.utils.files import file_errors
from schedules.compiled import use_threads
from schedules.population import Own, Shards

R = TypeVar("R")
# A source is a function and its arguments: read(count, *args) returns one piece for each shard.
Source = tuple[Any, ...]
Sources = Sequence[Source]
PIECES = "pieces"
PROCESSES, DASK = "processes", "dask://"
ENGINES = f"local, {PROCESSES}, {DASK}HOST:PORT"
CONNECT_SECONDS = 10
POLL_SECONDS = 1.0


class EngineError(FreshetError):
    """Raised if a process or a worker of a replan is lost."""


class Engine(Protocol):
    """Run steps in several processes."""

    @property
    def workers(self) -> int:
        """Return the number of steps that run at the same time."""

    def read(self, sources: Sources, count: int) -> AbstractContextManager[Shards]:
        """Read all sources, and yield the shards, each with a column `pieces`: a list."""


@contextmanager
def engine_of(name: str) -> Iterator[Engine]:
    """Yield the engine with a name. Raises ConfigError if it is not available."""
    if name == PROCESSES:
        yield Processes(os.cpu_count() or 1)
    elif name.startswith(DASK) and len(name) > len(DASK):
        with _connected(name.removeprefix(DASK)) as engine:
            yield engine
    else:
        raise ConfigError(f"engine not found: {name!r}. Available: {ENGINES}")


@dataclass(frozen=True, slots=True)
class Processes:
    """Processes of this machine. Columns are in files of a temporary folder."""

    workers: int

    @contextmanager
    def read(self, sources: Sources, count: int) -> Iterator[Shards]:
        """Read all sources; the folder and the processes exist during the block."""
        context = multiprocessing.get_context("forkserver")
        # The server imports the libraries once for all processes.
        context.set_forkserver_preload(["crawler.planning.sharded"])
        with tempfile.TemporaryDirectory(prefix="freshet-replan-") as name:
            pool = ProcessPoolExecutor(self.workers, context, _prepare)
            try:
                folders = [Path(name, str(number)) for number in range(count)]
                for folder in folders:
                    folder.mkdir()
                shards = _InFolders(pool, folders)
                numbered = enumerate(sources)
                shards.run(_read_into, [(folders, number, source) for number, source in numbered])
                yield shards
            finally:
                pool.shutdown(cancel_futures=True)


class _InFolders:
    """Shards with columns in folders."""

    def __init__(self, pool: ProcessPoolExecutor, folders: Sequence[Path]) -> None:
        self._pool, self._folders = pool, folders

    def __len__(self) -> int:
        return len(self._folders)

    def each(self, step: Callable[..., R], *common: Any, own: Own | None = None) -> list[R]:
        extra = [()] * len(self) if own is None else own
        shards = zip(self._folders, extra, strict=True)
        tasks = [(folder, step, (*common, *args)) for folder, args in shards]
        results: list[R] = self.run(_run, tasks)
        return results

    def one(self, number: int, step: Callable[..., R], *args: Any) -> R:
        result: list[R] = self.run(_run, [(self._folders[number], step, args)])
        return result[0]

    def run(self, function: Callable[..., R], tasks: Sequence[tuple[Any, ...]]) -> list[R]:
        """Call a function in the processes. Raises EngineError if one of them ended."""
        futures: list[Future[R]] = []
        try:
            futures.extend(self._pool.submit(function, *task) for task in tasks)
            return [future.result() for future in futures]
        except BrokenProcessPool:
            # No step may write any longer. The pool sets the exceptions of all futures, and would
            # fail on a canceled one. It misses a process that was starting when the pool broke, and
            # would wait for that process to end.
            for process in multiprocessing.active_children():
                process.kill()
                process.join()
            raise EngineError(
                "a process of the replan was killed, possibly because it ran out of memory: the "
                "old plan stays in effect. Run scrapy replan again, with a larger --shards"
            ) from None
        except BaseException:
            # No other step may write any longer. If the pool breaks now, `wait` would never return.
            for future in [future for future in futures if not future.cancel()]:
                with suppress(Exception):
                    future.result()
            raise


class _Files(MutableMapping[str, Any]):
    """Columns in files of a folder, which are read when they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Any:
        try:
            with (self._folder / name).open("rb") as file:
                return pickle.load(file)
        except FileNotFoundError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        path = self._folder / name
        with file_errors(str(path)), path.open("wb") as file:
            pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)

    def __delitem__(self, name: str) -> None:
        (self._folder / name).unlink()

    def __iter__(self) -> Iterator[str]:
        return (path.name for path in self._folder.iterdir())

    def __len__(self) -> int:
        return len(list(self._folder.iterdir()))


class _Pieces(_Files):
    """The columns of a shard, of which `pieces` is a folder."""

    def __getitem__(self, name: str) -> Any:
        if name != PIECES:
            return super().__getitem__(name)
        pieces = _Files(self._folder / PIECES)
        return [pieces[number] for number in sorted(pieces, key=int)]

    def __delitem__(self, name: str) -> None:
        if name != PIECES:
            super().__delitem__(name)
            return
        for path in (self._folder / PIECES).iterdir():
            path.unlink()
        (self._folder / PIECES).rmdir()


def _prepare() -> None:
    """Prepare a process that runs steps: it has one thread, and ends with the command."""
    use_threads(1)
    # Ctrl+C at a terminal reaches all processes; the command ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_command, daemon=True).start()


def _end_with_command() -> None:
    """End this process when the command has ended, even if it was killed."""
    command = multiprocessing.parent_process()
    assert command is not None
    command.join()
    os._exit(1)


def _read_into(folders: Sequence[Path], number: int, source: Source) -> None:
    """Read a source, and write each shard's piece to its folder."""
    read, *args = source
    for folder, piece in zip(folders, read(len(folders), *args), strict=True):
        pieces = folder / PIECES
        pieces.mkdir(exist_ok=True)
        _Files(pieces)[str(number)] = piece


def _run(folder: Path, step: Callable[..., R], args: tuple[Any, ...]) -> R:
    """Run a step on the columns in a folder."""
    return step(_Pieces(folder), *args)


@contextmanager
def _connected(address: str) -> Iterator[Engine]:
    """Yield the engine of a Dask cluster. Raises ConfigError if it is not available."""
    try:
        from distributed import Client
    except ImportError:
        raise ConfigError(
            "the engine dask:// needs the package distributed. Install it with pip install -r "
            "requirements-dask.txt, or use --engine processes"
        ) from None
    # Silence the library: errors are reported in one line, without its messages and tracebacks.
    for each in logging.root.manager.loggerDict:
        if each.startswith("distributed"):
            logging.getLogger(each).setLevel(logging.CRITICAL)
    try:
        client: Any = Client(f"tcp://{address}", timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError):
        raise ConfigError(
            f"Dask scheduler at {address}: no response within {CONNECT_SECONDS} s. Start it with "
            "dask scheduler, or use --engine processes"
        ) from None
    try:
        workers = _addresses(client)
        if not workers:
            raise ConfigError(
                f"Dask scheduler at {address}: no workers. Start some with dask worker {address}"
            )
        yield _Dask(client, workers)
    finally:
        client.close()


def _addresses(client: Any) -> frozenset[str]:
    """Return the addresses of the workers of a cluster."""
    return frozenset(client.scheduler_info(n_workers=-1)["workers"])


@dataclass(frozen=True, slots=True)
class _Dask:
    """A Dask cluster. Columns are in the memory of its workers, which move them to disk if full."""

    client: Any
    addresses: frozenset[str]

    @property
    def workers(self) -> int:
        return len(self.addresses)

    @contextmanager
    def read(self, sources: Sources, count: int) -> Iterator[Shards]:
        """Read all sources; the workers send the pieces to each other."""
        submit = self.client.submit
        pieces = [submit(_pieces, count, source, pure=False) for source in sources]
        states = [
            submit(_gathered, [submit(getitem, each, number) for each in pieces])
            for number in range(count)
        ]
        del pieces
        shards = _InCluster(self, states)
        shards.wait(states)
        yield shards


class _InCluster:
    """Shards whose columns are in the memory of a cluster."""

    def __init__(self, engine: _Dask, states: list[Any]) -> None:
        self._engine, self._states = engine, states

    def __len__(self) -> int:
        return len(self._states)

    def each(self, step: Callable[..., R], *common: Any, own: Own | None = None) -> list[R]:
        extra = [()] * len(self) if own is None else own
        tasks = [(number, (*common, *args)) for number, args in enumerate(extra)]
        return self._run(step, tasks)

    def one(self, number: int, step: Callable[..., R], *args: Any) -> R:
        return self._run(step, [(number, args)])[0]

    def _run(self, step: Callable[..., R], tasks: list[tuple[int, tuple[Any, ...]]]) -> list[R]:
        submit = self._engine.client.submit
        states = [
            submit(_state, self._states[number], step, args, pure=False) for number, args in tasks
        ]
        results = [submit(attrgetter("result"), state) for state in states]
        self.wait(results)
        for (number, _), state in zip(tasks, states, strict=True):
            self._states[number] = state
        found: list[R] = self._engine.client.gather(results)
        self._check()
        return found

    def wait(self, futures: list[Any]) -> None:
        """Wait for tasks. Raises EngineError if a worker is lost, and the first error of a task."""
        from distributed import wait as wait_for

        waiting = True
        while waiting:
            with suppress(TimeoutError), self._engine.client.as_current():
                waiting = bool(wait_for(futures, POLL_SECONDS).not_done)
            self._check()
            for future in futures:
                if future.status == "error":
                    try:
                        future.result()
                    except ModuleNotFoundError as error:
                        raise EngineError(
                            f"Dask worker: {error}. Install this version of Freshet on all workers"
                        ) from None

    def _check(self) -> None:
        if lost := self._engine.addresses - _addresses(self._engine.client):
            raise EngineError(
                f"Dask worker {min(lost)} was lost: the old plan stays in effect. Run scrapy "
                "replan again"
            )


@dataclass(frozen=True, slots=True)
class _State:
    """The columns of a shard after a step, and the step's result."""

    columns: dict[str, Any]
    result: Any = None


def _pieces(count: int, source: Source) -> list[Any]:
    use_threads(1)
    read, *args = source
    pieces: list[Any] = read(count, *args)
    return pieces


def _gathered(pieces: list[Any]) -> _State:
    return _State({PIECES: pieces})


def _state(before: _State, step: Callable[..., Any], args: tuple[Any, ...]) -> _State:
    """Run a step on a copy, because the previous state is still in the memory of the worker."""
    use_threads(1)
    columns = dict(before.columns)
    return _State(columns, step(columns, *args))
