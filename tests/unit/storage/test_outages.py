"""Server outages: detection and log messages."""

from __future__ import annotations

import logging

import pytest
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    DuplicateKeyError,
    ExecutionTimeout,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    WriteError,
    WTimeoutError,
)
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from crawler.errors import StorageError
from crawler.storage.client import (
    DISK_FULL,
    LOG_INTERVAL_SECONDS,
    QUIET_SECONDS,
    Outage,
    why_unavailable,
)
from crawler.storage.redis import is_unavailable

NO_SPACE = "28: No space left on device"
PAGE_URL = "http://shop.example/No space left on device"


def refused(code: int, text: str) -> OperationFailure:
    return OperationFailure(text, code, {"code": code, "errmsg": text})


def bulk(*problems: tuple[int, str], of: str = "writeErrors") -> BulkWriteError:
    return BulkWriteError({of: [{"code": code, "errmsg": text} for code, text in problems]})


@pytest.mark.parametrize(
    "error",
    [
        refused(14031, "not enough free disk space"),
        refused(8, NO_SPACE),
        refused(39, "Could not open/extend file"),
        WriteError(NO_SPACE, 8, {"code": 8, "errmsg": NO_SPACE}),
        bulk((8, NO_SPACE)),
        bulk((11000, f"dup key: {PAGE_URL}"), (8, "122: Disk quota exceeded")),
    ],
)
def test_a_full_disk_is_an_outage(error: PyMongoError) -> None:
    assert why_unavailable(error) == DISK_FULL


@pytest.mark.parametrize(
    "error",
    [
        AutoReconnect("connection closed"),
        NetworkTimeout("timed out"),
        ExecutionTimeout("operation exceeded time limit", 50, {}),
        WTimeoutError("waiting for replication timed out", 64, {}),
        refused(11600, "interrupted at shutdown"),
        bulk((11600, "interrupted at shutdown")),
        bulk((189, "stepped down"), of="writeConcernErrors"),
        bulk((64, "waiting for replication timed out"), of="writeConcernErrors"),
    ],
)
def test_unresponsive_server_is_an_outage(error: Exception) -> None:
    assert why_unavailable(error)


@pytest.mark.parametrize(
    "error",
    [
        DuplicateKeyError(f"dup key: {PAGE_URL}", 11000, {"errmsg": PAGE_URL}),
        bulk((11000, f"dup key: {PAGE_URL}"), (121, "Document failed validation")),
        bulk((8, "22: Invalid argument")),
        refused(8, "22: Invalid argument"),
        refused(2, PAGE_URL),
        StorageError("another"),
    ],
)
def test_error_caused_by_page_is_not_an_outage(error: Exception) -> None:
    assert why_unavailable(error) is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), True),
        (ResponseError("Error running script: -OOM command not allowed when used memory"), True),
        (ResponseError("MISCONF Errors writing to the AOF file: No space left on device"), True),
        (ReadOnlyError("You can't write against a read only replica."), True),
        (ResponseError("WRONGTYPE Operation against a key"), False),
        (ResponseError("unknown command"), False),
    ],
)
def test_redis_refusing_writes_is_an_outage(error: RedisError, *, expected: bool) -> None:
    assert is_unavailable(error) is expected


def test_outage_is_logged_once_and_then_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("of.outages"), "MongoDB")
    for second in range(int(2.5 * LOG_INTERVAL_SECONDS)):
        outage.lasts(100.0 + second, "its disk is full", 300.0)
    assert outage.succeeds(100.0 + second, has_failed=True)
    assert caplog.messages == [
        "MongoDB unavailable, retrying for up to 300 s: its disk is full",
        "MongoDB still unavailable after 60 s, retrying: its disk is full",
        "MongoDB still unavailable after 120 s, retrying: its disk is full",
        "MongoDB available again after 149 s",
    ]
    assert (outage.is_on, outage.count) == (False, 1)


def test_reads_do_not_end_an_outage_of_writes() -> None:
    outage = Outage(logging.getLogger("of.outages"), "MongoDB")
    outage.lasts(0.0, "its disk is full", 300.0)
    assert not outage.succeeds(1.0, has_failed=False)
    assert outage.is_on
    # The failed call was abandoned, so no other call would end the outage.
    assert outage.succeeds(QUIET_SECONDS + 1, has_failed=False)
    assert not outage.is_on
