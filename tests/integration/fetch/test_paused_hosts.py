"""A host that asked for a pause does not stop the visits of other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.harness import Db, Freshet, target, visits
from tests.integration.recording import Recorder

pytestmark = pytest.mark.mongo
ITEMS = 6


@pytest.fixture
def shop() -> Iterator[Recorder]:
    """Run a site at 127.0.0.1 whose first item redirects to `localhost`, another host."""
    with Recorder() as server:
        links = "".join(f"<a href=/item/{n}>{n}</a>" for n in range(ITEMS))
        server.answers |= {"/list": links, "/elsewhere": "<h1>Elsewhere</h1>"}
        server.answers |= {f"/item/{n}": f"<h1>{n}</h1>" for n in range(ITEMS)}
        server.answers["/item/0"] = (302, f"http://localhost:{server.port}/elsewhere")
        yield server


def test_page_that_redirects_to_a_paused_host_does_not_block_its_site(
    freshet: Freshet, database: Db, shop: Recorder
) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    database.hosts.insert_one({"_id": "localhost", "hold_until": until})
    definition = freshet.wrapper(
        "shop", start_urls=[f"{shop.url}/list"], item_pages="/item/", robots=False, concurrency=1
    )
    freshet.crawl(definition, FRESHET_IN_FLIGHT=1, FRESHET_PRIVATE_ADDRESSES=1)
    (visit,) = visits(database, target=f"{shop.url}/item/0")
    assert visit["outcome"] == "error"
    assert visit["reason"].startswith("requests to localhost are paused for another ")
    for n in range(1, ITEMS):
        assert target(database, f"{shop.url}/item/{n}")["refreshed"] == 1
