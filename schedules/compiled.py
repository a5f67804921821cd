"""Numba with types: loops over single targets, compiled once and kept for all later processes.

A million targets of a few changes each are too many for Python and too ragged for numpy. The
kernels leave the interpreter free (nogil), so chunks of targets run in threads.

The machine code is kept in the environment that Python is installed in, where `make` and the image
put it, and in the user's cache, which serves all checkouts and environments of a user. A kernel is
compiled again if the source that it is made of changes, for another kind of processor, and for
another version of Numba.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ParamSpec, TypeVar

import numba
from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler import CompileResult
from numba.core.runtime.nrt import rtsys

from schedules.progress import announce

P = ParamSpec("P")
R = TypeVar("R")
Part = slice
CHUNK = 20_000
KERNELS = Path("freshet", "kernels")
# The package whose packages import each other's kernels.
PLANNER = "schedules"
# The versions of a few branches stay next to each other, older ones go.
MAX_VERSIONS = 8
# Reading what a crash, a full disk or another user left.
UNREADABLE = (OSError, EOFError, UnpicklingError, ValueError, TypeError, AttributeError)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The same function in machine code, made at its first call."""
    kernel: Any = njit(nogil=True, error_model="numpy")(function)
    kernel._cache = _KernelCache(function)
    typed: Callable[P, R] = kernel
    return typed


def parts(n: int) -> Iterator[Part]:
    """Slices that cover 0 to n; one, though empty, for none."""
    for begin in range(0, max(n, 1), CHUNK):
        yield slice(begin, min(begin + CHUNK, n))


def spread_over(work: Callable[[Part], R], pieces: Iterator[Part]) -> list[R]:
    """The results of `work` for each piece, in order; compiled kernels run side by side."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, pieces))


def cache_folders() -> tuple[Path, ...]:
    """Return the folders of compiled kernels, the first to be read first.

    All are read, and what is compiled is written to each that can be written.
    """
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return (Path(given),)
    installed = Path(sys.prefix, "var", "cache", KERNELS)
    home = Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"))  # noqa: PTH111
    return (installed, home / KERNELS) if home.is_absolute() else (installed,)


class _KernelCache(FunctionCache):
    """The machine code of one function, by signature and processor, in several folders."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # Numba's own looks for one folder, and takes any change of the function's file for one of
        # the function, but none of the modules that its code comes from.
        self._name, self._py_func = repr(function), function
        self._module = function.__module__
        self._stamp = _stamp_of(self._module)
        self._files = {
            folder: self._file(folder)
            for folder in (place / f"{self._module}-{self._stamp}" for place in cache_folders())
        }
        self.enable()  # type: ignore[no-untyped-call]

    def _file(self, folder: Path) -> IndexDataCacheFile:
        abi = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
        base = f"{self._py_func.__qualname__}.{abi}"
        return IndexDataCacheFile(str(folder), base, self._stamp)  # type: ignore[no-untyped-call]

    @property
    def cache_path(self) -> str:
        """The folder that is read first."""
        return str(next(iter(self._files)))

    def flush(self) -> None:
        """Forget the function's machine code."""
        for file in self._files.values():
            with suppress(OSError):
                file.flush()  # type: ignore[no-untyped-call]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kept kernel, or None after a word to whoever waits for it to be compiled."""
        # Numba would load all that compiling needs, for half a second; a kept kernel needs this.
        rtsys.initialize(target_context)
        key = self._index_key(sig, target_context.codegen())  # type: ignore[no-untyped-call]
        for folder, file in self._files.items():
            with suppress(*UNREADABLE):
                if (kept := file.load(key)) is not None:  # type: ignore[no-untyped-call]
                    self._keep(key, kept, folder)
                    return CompileResult._rebuild(target_context, *kept)  # type: ignore[no-untyped-call]
        announce()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled kernel wherever that is possible."""
        if not (data.lifted or data.library.has_dynamic_globals):
            key = self._index_key(sig, data.codegen)  # type: ignore[no-untyped-call]
            self._keep(key, data._reduce())

    def _keep(self, key: object, kernel: object, source: Path | None = None) -> None:
        """Write to all folders, or to those that are read before the one where it was found."""
        for folder, file in self._files.items():
            if folder == source:
                break
            with suppress(OSError):
                if not folder.is_dir():
                    folder.mkdir(parents=True, exist_ok=True)
                    self._remove_old_versions(folder)
                try:
                    file.save(key, kernel)  # type: ignore[no-untyped-call]
                except UNREADABLE:
                    file.flush()  # type: ignore[no-untyped-call]
                    file.save(key, kernel)  # type: ignore[no-untyped-call]

    def _remove_old_versions(self, newest: Path) -> None:
        """Leave MAX_VERSIONS of the module's folders, the newest among them."""
        versions = list(newest.parent.glob(f"{self._module}-*"))
        versions.sort(key=lambda folder: (folder == newest, folder.stat().st_mtime), reverse=True)
        for old in versions[MAX_VERSIONS:]:
            shutil.rmtree(old, ignore_errors=True)


@cache
def _stamp_of(module: str) -> str:
    """Return a digest of the sources that a module's kernels are made of, and of their compiler.

    A kernel holds the code of kernels that it calls and the values of constants, so these are the
    module and all modules of its package that it imports, directly or through others.
    """
    package = PLANNER if module.startswith(f"{PLANNER}.") else module.rpartition(".")[0]
    sources: dict[str, bytes] = {}
    pattern = re.compile(rf"^\s*from {re.escape(package)}((?:\.\w+)*) import (\([^)]*\)|.*)", re.M)
    names = [module.removeprefix(f"{package}.")]
    while names:
        name = names.pop()
        file = files(package).joinpath(*f"{name.replace('.', '/')}.py".split("/"))
        if name not in sources and file.is_file():
            sources[name] = file.read_bytes()
            # What is imported may be a module, or something in it.
            for place, imported in pattern.findall(sources[name].decode()):
                names.append(place[1:])
                names += [
                    f"{place[1:]}.{word}".lstrip(".") for word in re.findall(r"\w+", imported)
                ]
    parts = [numba.__version__.encode(), files(PLANNER).joinpath("compiled.py").read_bytes()]
    parts += [sources[name] for name in sorted(sources)]
    return sha256(b"\0".join(parts)).hexdigest()[:20]
