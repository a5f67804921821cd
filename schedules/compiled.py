"""Numba with types: loops over single targets, compiled once and kept beside the module.

A million targets of a few changes each are too many for Python and too ragged for numpy. The
kernels leave the interpreter free (nogil), so chunks of targets run in threads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pickle import UnpicklingError
from typing import Any, ParamSpec, TypeVar

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.runtime.nrt import rtsys

P = ParamSpec("P")
R = TypeVar("R")


class _Kept(FunctionCache):
    """Kernels on disk, valid as long as no module of their package changes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        place = self._cache_path, self._impl.filename_base
        stamp = _stamp_of(function.__module__.rpartition(".")[0])
        self._cache_file = IndexDataCacheFile(*place, stamp)  # type: ignore[no-untyped-call]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kept kernel; none if there is none or a crash left half a file."""
        # Numba would load all that compiling needs, for half a second; a kept kernel needs this.
        rtsys.initialize(target_context)
        try:
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except (EOFError, UnpicklingError):
            self.flush()  # type: ignore[no-untyped-call]
            return None


@cache
def _stamp_of(package: str) -> bytes:
    """Numba compares a kernel's own file only, but its code holds what it takes from others."""
    there = sorted(files(package).iterdir(), key=lambda file: file.name)
    modules = (file.read_bytes() for file in there if file.name.endswith(".py"))
    return sha256(b"".join(modules)).digest()


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The same function in machine code, made at its first call."""
    kernel: Any = njit(nogil=True, error_model="numpy")(function)
    # Where no folder can be written, each process compiles anew.
    with suppress(RuntimeError):
        kernel._cache = _Kept(function)
    typed: Callable[P, R] = kernel
    return typed
