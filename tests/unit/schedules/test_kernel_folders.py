"""Cache folders of compiled kernels: only the newest versions are remaining."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from schedules.compiled import KERNELS, MAX_VERSIONS, compiled
from schedules.estimation.rates import running

MODULE = "schedules.estimation.rates"


def test_new_kernel_version_removes_oldest_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel is in the user's cache, so it is copied into the installation, not compiled.
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    running(np.zeros(168))
    installed = tmp_path / "var" / "cache" / KERNELS
    other = installed / "schedules.calendar-0"
    other.mkdir(parents=True)
    for age in range(MAX_VERSIONS + 2):
        folder = installed / f"{MODULE}-{age}"
        folder.mkdir()
        # The clock of another file system may be ahead, so these seem newer than the new folder.
        os.utime(folder, (4e9 - age, 4e9 - age))
    kernel = compiled(running.py_func)
    kernel(np.zeros(168))
    newest = Path(kernel.stats.cache_path).name
    remaining = {folder.name for folder in installed.glob(f"{MODULE}-*")}
    assert remaining == {newest, *(f"{MODULE}-{age}" for age in range(MAX_VERSIONS - 1))}
    assert other.is_dir()
