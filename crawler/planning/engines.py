"""Engines run the steps of a replan on shards: in processes of this machine, or on a Dask cluster.

Both are executors of `concurrent.futures`, so one code runs the steps. What the steps know of a
shard is in files beside the processes that run them, because all shards together need more memory
than they have. If a process or a worker is lost, the replan fails; no step is repeated, because the
database has changed since it was read.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from crawler.errors import ConfigError, FreshetError
from crawler.storage.client import in_batches
from crawler.utils.files import file_errors
from schedules.compiled import use_threads
from schedules.population import Own

R = TypeVar("R")
# A source is a function and its arguments: read(count, *args) returns one piece for each shard.
Source = tuple[Any, ...]
PROCESSES, DASK = "processes", "dask://"
ENGINES = f"local, {PROCESSES}, {DASK}HOST:PORT"
PREFIX = "freshet-replan-"
CONNECT_SECONDS = 10
# A worker has to import Freshet first.
ANSWER_SECONDS = 60
POLL_SECONDS = 1.0
KILLED = (
    "a process of the replan was killed, possibly because it ran out of memory: the old plan stays "
    "in effect. Run scrapy replan again, with a larger --shards"
)
LOST = "Dask worker {} was lost: the old plan stays in effect. Run scrapy replan again"


class EngineError(FreshetError):
    """Raised if a process or a worker of a replan is lost."""


class InFiles:
    """An object with attributes in files of a folder. They are read when a step uses them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, Any] = {}

    # Hidden, so that type checkers report the names of attributes that do not exist.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            try:
                with (self._folder / name).open("rb") as file:
                    value = pickle.load(file)
            except FileNotFoundError:
                raise AttributeError(name) from None
            self._read[name] = value
            setattr(self, name, value)
            return value

    def __delattr__(self, name: str) -> None:
        vars(self).pop(name, None)
        (self._folder / name).unlink(missing_ok=True)

    def pop_pieces(self) -> Iterator[Any]:
        """Yield the pieces that were read for this shard, and delete them."""
        for path in sorted(self._folder.glob("*.piece")):
            with path.open("rb") as file:
                yield pickle.load(file)
            path.unlink()

    def save(self) -> None:
        """Write the attributes that were set."""
        for name, value in vars(self).items():
            if not name.startswith("_") and value is not self._read.get(name, self):
                _write(self._folder / name, value)


S = TypeVar("S", bound=InFiles)


def _write(path: Path, value: object) -> None:
    with file_errors(str(path)), path.open("wb") as file:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)


@dataclass(frozen=True, slots=True)
class Engine:
    """Hold the executors that run steps.

    executors: each with the folder for its shards, which all of its processes see
    workers:   number of steps that run at the same time
    check:     raises EngineError if a worker is lost
    """

    executors: Sequence[tuple[Executor, Path]]
    workers: int
    check: Callable[[], None]

    def read(self, sources: Sequence[Source], count: int, kind: type[S]) -> EngineShards[S]:
        """Read all sources, and return shards of which each can pop its pieces."""
        shards = EngineShards(self, count, kind)
        # The pieces go through this process: a few sources at a time, so that it holds few of them.
        for batch in in_batches(list(enumerate(sources)), self.workers):
            read = [(number, _read, count, source) for number, source in batch]
            for (place, _), pieces in zip(batch, shards.run(read), strict=True):
                shards.run(
                    (number, _add, number, f"{place:06}.piece", piece)
                    for number, piece in enumerate(pieces)
                )
        return shards


class EngineShards(Generic[S]):
    """Shards on an engine; a shard stays with its executor."""

    def __init__(self, engine: Engine, count: int, kind: type[S]) -> None:
        self._engine, self._count, self._kind = engine, count, kind

    def __len__(self) -> int:
        return self._count

    def each(self, step: Callable[..., R], *common: Any, own: Own | None = None) -> list[R]:
        """Run a step on all shards, as many at a time as the engine can."""
        extra = [()] * len(self) if own is None else own
        return self.run(
            (number, _run, number, self._kind, step, (*common, *args))
            for number, args in enumerate(extra)
        )

    def one(self, number: int, step: Callable[..., R], *args: Any) -> R:
        """Run a step on one shard."""
        (result,) = self.run([(number, _run, number, self._kind, step, args)])
        value: R = result
        return value

    def run(self, tasks: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Run functions where shards are: tasks of shard number, function and arguments.

        Raises EngineError if a process or a worker is lost, and the first error of a task.
        """
        futures: list[Future[Any]] = []
        try:
            for number, function, *args in tasks:
                executor, folder = self._engine.executors[number % len(self._engine.executors)]
                futures.append(executor.submit(function, folder, *args))
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, POLL_SECONDS, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                self._engine.check()
            return [future.result() for future in futures]
        except BrokenExecutor:
            # No step may write any longer. The pool sets the exceptions of all futures, and would
            # fail on a canceled one. It misses a process that was starting when the pool broke, and
            # would wait for that process to end.
            for process in multiprocessing.active_children():
                process.kill()
                process.join()
            raise EngineError(KILLED) from None
        except ModuleNotFoundError as error:
            raise EngineError(
                f"Dask worker: {error}. Install this version of Freshet on all workers"
            ) from None
        except BaseException:
            # No other step may write any longer. If the pool breaks now, `wait` would never return.
            for future in [future for future in futures if not future.cancel()]:
                with suppress(Exception):
                    future.result()
            raise


def _read(_: Path, count: int, source: Source) -> Sequence[Any]:
    """Read a source; return a piece for each shard."""
    use_threads(1)
    read, *args = source
    pieces: Sequence[Any] = read(count, *args)
    return pieces


def _add(folder: Path, number: int, name: str, piece: object) -> None:
    """Write a piece of a shard to its folder."""
    own = folder / str(number)
    own.mkdir(exist_ok=True)
    _write(own / name, piece)


def _run(
    folder: Path, number: int, kind: type[S], step: Callable[..., R], args: Sequence[Any]
) -> R:
    """Run a step on a shard."""
    if not folder.exists():
        raise EngineError(LOST.format("with its files"))
    use_threads(1)
    shard = kind(folder / str(number))
    result = step(shard, *args)
    shard.save()
    return result


@contextmanager
def engine_of(name: str) -> Iterator[Engine]:
    """Yield the engine with a name. Raises ConfigError if it is not available."""
    if name == PROCESSES:
        with processes(os.cpu_count() or 1) as engine:
            yield engine
    elif name.startswith(DASK) and len(name) > len(DASK):
        with _cluster(name.removeprefix(DASK)) as engine:
            yield engine
    else:
        raise ConfigError(f"engine not found: {name!r}. Available: {ENGINES}")


@contextmanager
def processes(workers: int) -> Iterator[Engine]:
    """Yield an engine of processes of this machine, with a temporary folder for all of them."""
    context = multiprocessing.get_context("forkserver")
    # The server imports the libraries once for all processes.
    context.set_forkserver_preload(["crawler.planning.sharded"])
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        pool = ProcessPoolExecutor(workers, context, _prepare)
        try:
            yield Engine([(pool, Path(name))], workers, check=lambda: None)
        finally:
            pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    """Prepare a process that runs steps: it ends with the command, even if that was killed."""
    # Ctrl+C at a terminal reaches all processes; the command ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_command, daemon=True).start()


def _end_with_command() -> None:
    command = multiprocessing.parent_process()
    assert command is not None
    command.join()
    os._exit(1)


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Yield a client of a Dask cluster. Raises ConfigError if it is not available."""
    try:
        from distributed import Client
    except ImportError:
        raise ConfigError(
            "the engine dask:// needs the package distributed. Install it with pip install -r "
            "requirements-dask.txt, or use --engine processes"
        ) from None
    # Silence the library: errors are reported in one line, without its messages and tracebacks.
    for each in logging.root.manager.loggerDict:
        if each.startswith(("distributed", "tornado")):
            logging.getLogger(each).setLevel(logging.CRITICAL)
    try:
        client: Any = Client(f"tcp://{address}", timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError):
        raise ConfigError(
            f"Dask scheduler at {address}: no response within {CONNECT_SECONDS} s. Start it with "
            "dask scheduler, or use --engine processes"
        ) from None
    try:
        if not _workers(client):
            raise ConfigError(
                f"Dask scheduler at {address}: no workers. Start some with dask worker {address}"
            )
        yield client
    finally:
        client.close()


def _workers(client: Any) -> frozenset[str]:
    """Return the addresses of the workers of a cluster."""
    return frozenset(client.scheduler_info(n_workers=-1)["workers"])


def _folder_of_worker() -> tempfile.TemporaryDirectory[str]:
    """Return a folder in that of a Dask worker, which is deleted if the worker is lost."""
    from distributed import get_worker

    return tempfile.TemporaryDirectory(prefix=PREFIX, dir=get_worker().local_directory)


@contextmanager
def _cluster(address: str) -> Iterator[Engine]:
    """Yield the engine of a Dask cluster, with a temporary folder on each worker."""
    with _connected(address) as client:
        workers = sorted(_workers(client))
        submit = partial(client.submit, pure=False)
        # Held here: a worker deletes its folder when the client is gone, even if it was killed.
        folders = [submit(_folder_of_worker, workers=[worker]) for worker in workers]
        named = [submit(attrgetter("name"), folder) for folder in folders]
        try:
            names = [each.result(timeout=ANSWER_SECONDS) for each in named]
        except TimeoutError:
            # A task that needs a lost worker would wait forever.
            raise EngineError(
                f"Dask cluster at {address}: a worker did not answer within {ANSWER_SECONDS} s. "
                "Run scrapy replan again"
            ) from None
        executors = [client.get_executor(workers=[worker], pure=False) for worker in workers]

        def check() -> None:
            if lost := set(workers) - _workers(client):
                raise EngineError(LOST.format(min(lost)))

        yield Engine(list(zip(executors, map(Path, names), strict=True)), len(workers), check)
