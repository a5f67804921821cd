"""Processes that are known to have ended, so that their leases are free."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crawler.utils import process as processes

pytestmark = pytest.mark.skipif(not processes.PROC.is_dir(), reason="needs /proc")


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all processes in /proc, as its option `hidepid` hides those of other users."""
    boot_id = "sys/kernel/random/boot_id"
    (tmp_path / boot_id).parent.mkdir(parents=True)
    shutil.copy(processes.PROC / boot_id, tmp_path / boot_id)
    (tmp_path / "self").symlink_to(processes.PROC / "self")
    monkeypatch.setattr(processes, "PROC", tmp_path)


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_running_process_has_not_ended() -> None:
    us = processes.this_process()
    assert not processes.has_ended(us["place"], us["pid"], us["began"])


def test_process_with_the_pid_of_an_earlier_one_has_ended() -> None:
    us = processes.this_process()
    assert processes.has_ended(us["place"], us["pid"], f"{us['began']}0")


def test_ended_process_has_ended() -> None:
    assert processes.has_ended(processes.this_process()["place"], ended_process(), "12345")


@pytest.mark.usefixtures("hidden")
def test_hidden_process_has_ended_only_if_its_pid_is_free() -> None:
    place = processes.this_process()["place"]
    assert not processes.has_ended(place, os.getppid(), "12345")
    assert processes.has_ended(place, ended_process(), "12345")
