"""Errors of connections are explained by their causes."""

from __future__ import annotations

import pytest
from OpenSSL import SSL
from scrapy.exceptions import DownloadFailedError, ResponseDataLossError
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from twisted.web.client import ResponseFailed

from crawler.errors import NoConnection
from crawler.fetch.handler import _explained

EARLY_END = SSL.Error([("SSL routines", "", "unexpected eof while reading")])
NO_TLS = SSL.Error([("SSL routines", "", "wrong version number")])


@pytest.mark.parametrize(
    ("error", "cause", "expected", "reason"),
    [
        (
            DownloadFailedError("?"), ConnectionDone(), DownloadFailedError,
            "connection closed before the response",
        ),
        # Retried, as without TLS.
        (
            DownloadFailedError("?"), EARLY_END, DownloadFailedError,
            "connection closed before the response",
        ),
        (
            ResponseDataLossError("?"), EARLY_END, ResponseDataLossError,
            "connection closed before the end of the body",
        ),
        (
            DownloadFailedError("?"), NO_TLS, NoConnection,
            "no TLS connection: wrong version number",
        ),
    ],
)  # fmt: skip
def test_cause_is_named(
    error: Exception, cause: Exception, expected: type[Exception], reason: str
) -> None:
    error.__cause__ = ResponseFailed([Failure(cause)])  # type: ignore[no-untyped-call]
    explained = _explained(error)
    assert type(explained) is expected
    assert str(explained) == reason
