"""Atomic replacement of files, without following links of other users; compressed files."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crawler.utils.files import COMPRESSED_CHUNK_BYTES, atomic_replace, opened_input


def test_error_keeps_old_content_and_removes_draft(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(IsADirectoryError), atomic_replace(path) as draft:
        draft.write_bytes(tmp_path.read_bytes())
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
    with atomic_replace(path) as draft:
        draft.write_text("new")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("new", [path])


def test_symlink_at_draft_path_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "a.txt", tmp_path / "other"
    other.write_text("mine")
    (tmp_path / f".a.{os.getpid()}.txt").symlink_to(other)
    with atomic_replace(path) as draft:
        draft.write_text("new")
    assert (path.read_text(), other.read_text()) == ("new", "mine")


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_zero_bytes_pad_compressed_streams(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path, padding = tmp_path / "a", bytes(2 * COMPRESSED_CHUNK_BYTES)
    path.write_bytes(compress(b"first ") + padding + compress(b"second") + padding)

    async def read() -> bytes:
        with opened_input(str(path)) as file:
            return b"".join([chunk async for chunk in file.chunks()])

    assert asyncio.run(read()) == b"first second"
