"""Compile loops over targets with Numba, and cache the machine code across processes.

With a million targets of a few changes each, Python loops are too slow, and the rows are too uneven
for NumPy. Kernels release the GIL, so chunks of targets run in parallel threads.

The machine code is cached in two places: in the Python environment, where `make` and the Docker
image put it, and in the user's cache directory, which all checkouts and environments share. A
kernel is recompiled if its source changes, on a different type of processor, and with a different
version of Numba.
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

from schedules import announce

P = ParamSpec("P")
R = TypeVar("R")
Part = slice
# Targets of a part. Every thread holds the profiles of one part, 1.3 kB of each target.
CHUNK = 5_000
_limits = {"threads": os.cpu_count() or 1}
KERNELS = Path("freshet", "kernels")
# The package whose subpackages import each other's kernels.
PLANNER = "schedules"
# Keep the versions of a few branches; remove older ones.
MAX_VERSIONS = 8
# Errors from reading files left by a crash, a full disk or another user.
UNREADABLE = (OSError, EOFError, UnpicklingError, ValueError, TypeError, AttributeError)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function to machine code at its first call."""
    kernel: Any = njit(nogil=True, error_model="numpy")(function)
    kernel._cache = _KernelCache(function)
    typed: Callable[P, R] = kernel
    return typed


def parts(n: int) -> Iterator[Part]:
    """Yield slices that cover 0 to n; for n = 0, yield one empty slice."""
    for begin in range(0, max(n, 1), CHUNK):
        yield slice(begin, min(begin + CHUNK, n))


def use_threads(count: int) -> None:
    """Limit the threads of `spread_over`, in a process that is one of several."""
    _limits["threads"] = count


def spread_over(work: Callable[[Part], R], pieces: Iterator[Part]) -> list[R]:
    """Return the results of `work` for each piece, in order; compiled kernels run in parallel."""
    with ThreadPoolExecutor(_limits["threads"]) as pool:
        return list(pool.map(work, pieces))


def cache_folders() -> tuple[Path, ...]:
    """Return the folders of compiled kernels, in the order in which they are read.

    All folders are read. New kernels are written to every writable folder.
    """
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return (Path(given),)
    installed = Path(sys.prefix, "var", "cache", KERNELS)
    home = Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"))  # noqa: PTH111
    return (installed, home / KERNELS) if home.is_absolute() else (installed,)


class _KernelCache(FunctionCache):
    """Cache the machine code of one function, by signature and processor, in several folders."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # Numba's own cache uses a single folder. It invalidates a function when anything in its
        # file changes, but not when an imported module changes whose code the kernel contains.
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
        """Return the folder that is read first."""
        return str(next(iter(self._files)))

    def flush(self) -> None:
        """Remove the function's machine code from all folders."""
        for file in self._files.values():
            with suppress(OSError):
                file.flush()  # type: ignore[no-untyped-call]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the cached kernel, or None after notifying listeners that compilation starts."""
        # Numba's implementation loads the whole compiler, which takes half a second. Loading a
        # cached kernel only needs the runtime.
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
        """Write a compiled kernel to every writable folder."""
        if not (data.lifted or data.library.has_dynamic_globals):
            key = self._index_key(sig, data.codegen)  # type: ignore[no-untyped-call]
            self._keep(key, data._reduce())

    def _keep(self, key: object, kernel: object, source: Path | None = None) -> None:
        """Write a kernel to all folders, or to those that precede the folder where it was found."""
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
        """Keep MAX_VERSIONS of the module's folders, including the newest."""
        versions = list(newest.parent.glob(f"{self._module}-*"))
        versions.sort(key=lambda folder: (folder == newest, folder.stat().st_mtime), reverse=True)
        for old in versions[MAX_VERSIONS:]:
            shutil.rmtree(old, ignore_errors=True)


@cache
def _stamp_of(module: str) -> str:
    """Return a digest of the sources of a module's kernels and of the compiler version.

    A kernel contains the code of the kernels that it calls and the values of constants. The digest
    therefore covers the module and every module of its package that it imports, directly or
    indirectly.
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
            # An imported name can be a module or an object in one, so try both.
            for place, imported in pattern.findall(sources[name].decode()):
                names.append(place[1:])
                names += [
                    f"{place[1:]}.{word}".lstrip(".") for word in re.findall(r"\w+", imported)
                ]
    parts = [numba.__version__.encode(), files(PLANNER).joinpath("compiled.py").read_bytes()]
    parts += [sources[name] for name in sorted(sources)]
    return sha256(b"\0".join(parts)).hexdigest()[:20]
