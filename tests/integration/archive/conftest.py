"""Fixture of the archive tests: the demo shop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.archived_shop import running


@pytest.fixture
def shop() -> Iterator[str]:
    with running() as url:
        yield url
