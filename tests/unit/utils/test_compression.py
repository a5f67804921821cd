"""Decompression of valid and malformed gzip and deflate data."""

from __future__ import annotations

import gzip
import os
import zlib

import brotli
import pytest
from backports import zstd

from crawler.errors import BadResponse, TooLarge
from crawler.utils.compression import (
    MAX_PARTS,
    PIECE_BYTES,
    CorruptData,
    decoded_body,
    gunzipped,
    inflated,
)

LIMIT = 1_000_000
TEXT = os.urandom(3 * PIECE_BYTES) + b"the same " * 30_000
HEAD = b"\x1f\x8b\x08%c\0\0\0\0\0\xff"


def raw(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("level", [0, 1, 9])
def test_decompresses_gzip_and_deflate(level: int) -> None:
    assert gunzipped(gzip.compress(TEXT, level), LIMIT) == TEXT
    assert inflated(zlib.compress(TEXT, level), LIMIT) == TEXT


def test_decompresses_raw_deflate() -> None:
    assert inflated(raw(TEXT), LIMIT) == TEXT


@pytest.mark.parametrize(
    "head",
    [
        HEAD % 1, HEAD % 8 + b"name.txt\0", HEAD % 16 + b"a comment\0", HEAD % 4 + b"\2\0xx",
        HEAD % 30 + b"\2\0xxname\0comment\0cc",
    ],
    ids=["plain", "name", "comment", "extra", "all"],
)  # fmt: skip
def test_gzip_header_fields_are_skipped(head: bytes) -> None:
    assert gunzipped(head + raw(TEXT) + b"checksum", LIMIT) == TEXT


def test_decompresses_concatenated_members() -> None:
    assert gunzipped(gzip.compress(TEXT) + gzip.compress(b"more"), LIMIT) == TEXT + b"more"


@pytest.mark.parametrize("after", [b"\0" * 512, b"\r\n", b"garbage"])
def test_trailing_data_is_ignored(after: bytes) -> None:
    assert gunzipped(gzip.compress(TEXT) + after, LIMIT) == TEXT


def test_wrong_checksum_is_ignored() -> None:
    assert gunzipped(gzip.compress(TEXT)[:-8] + b"12345678", LIMIT) == TEXT


def test_truncated_file_gives_its_beginning() -> None:
    read = gunzipped(gzip.compress(TEXT)[:-50_000], LIMIT)
    assert TEXT.startswith(read)
    assert len(read) > 100_000


@pytest.mark.parametrize("data", [b"<html>", HEAD % 1 + b"\xff" * 100], ids=["page", "corrupt"])
def test_uncompressed_data_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptData):
        gunzipped(data, LIMIT)
    with pytest.raises(CorruptData):
        inflated(b"\xff" * 100, LIMIT)


def test_rejects_output_above_limit() -> None:
    compressed = gzip.compress(bytes(LIMIT + 1))
    assert len(gunzipped(compressed, LIMIT + 1)) == LIMIT + 1
    with pytest.raises(BadResponse, match="more than 1000000 bytes"):
        gunzipped(compressed, LIMIT)
    with pytest.raises(BadResponse, match="more than 1000000 bytes"):
        inflated(zlib.compress(bytes(LIMIT + 1)), LIMIT)


def test_rejects_too_many_members() -> None:
    with pytest.raises(BadResponse, match="parts"):
        gunzipped(gzip.compress(b"") * (MAX_PARTS + 1), LIMIT)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("cut", [1, 20, 2000])
def test_incomplete_body_is_rejected(coding: str, cut: int) -> None:
    compress = {
        "gzip": lambda text: gzip.compress(text)[:-8],  # without the checksum, which is not needed
        "deflate": zlib.compress, "br": brotli.compress, "zstd": zstd.compress,
    }[coding]  # fmt: skip
    body = compress(TEXT)
    whole = body + b"checksum" if coding == "gzip" else body
    assert decoded_body(whole, [coding.encode()], LIMIT) == (TEXT, [])
    with pytest.raises(BadResponse, match="cannot be decompressed"):
        decoded_body(
            body[:-cut] if coding != "deflate" else body[: -4 - cut], [coding.encode()], LIMIT
        )


@pytest.mark.parametrize("coding", ["br", "zstd"])
def test_large_body_of_any_coding_is_rejected(coding: str) -> None:
    compress = brotli.compress if coding == "br" else zstd.compress
    with pytest.raises(TooLarge):
        decoded_body(compress(bytes(LIMIT + 1)), [coding.encode()], LIMIT)
    assert decoded_body(compress(bytes(LIMIT)), [coding.encode()], LIMIT) == (bytes(LIMIT), [])
