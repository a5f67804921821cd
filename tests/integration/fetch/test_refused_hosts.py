"""A host that refuses gets no further requests, apart from those that are on the wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.harness import Db, Freshet
from tests.integration.recording import Recorder

ITEMS, STRIKES = 40, 3


@pytest.fixture
def shop() -> Iterator[Recorder]:
    with Recorder() as server:
        links = "".join(f"<a href=/item/{n}>{n}</a>" for n in range(ITEMS))
        server.answers["/list"] = links
        server.answers |= {f"/item/{n}": (403, "/") for n in range(ITEMS)}
        yield server


def items(server: Recorder) -> int:
    return sum(path.startswith("/item/") for path, _ in server.asked)


@pytest.mark.parametrize(("concurrency", "delay_seconds"), [(1, 0), (4, 0), (16, 0.25)])
@pytest.mark.parametrize("kind", ["one process", "shared"])
def test_queued_requests_to_a_refusing_host_are_dropped(
    freshet: Freshet, database: Db, shop: Recorder, request: pytest.FixtureRequest,
    concurrency: int, delay_seconds: float, kind: str,
) -> None:  # fmt: skip
    shared = {"REDIS_URL": request.getfixturevalue("redis")} if kind == "shared" else {}
    definition = freshet.wrapper(
        "shop", start_urls=[f"{shop.url}/list"], item_pages="/item/", robots=False,
        concurrency=concurrency, delay_seconds=delay_seconds,
    )  # fmt: skip
    freshet.crawl(definition, FRESHET_BLOCKED_FAILURES=STRIKES, **shared)
    assert STRIKES <= items(shop) <= STRIKES + (1 if delay_seconds else concurrency)
    assert database.targets.count_documents({"outcome": "blocked"}) == items(shop)
    due = database.targets.count_documents({"url": {"$regex": "/item/"}, "requested": 0})
    assert due == ITEMS - items(shop), "the others stay due"
