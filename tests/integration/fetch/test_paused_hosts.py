"""A host that requested a pause does not stop the visits of other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.harness import Db, Freshet, target
from tests.integration.recording import Recorder

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


@pytest.fixture(params=["one process", "shared"])
def settings(request: pytest.FixtureRequest) -> dict[str, object]:
    """Return the settings of a crawl of one target at a time, with and without a queue in Redis."""
    url = request.getfixturevalue("redis") if request.param == "shared" else None
    shared = {} if url is None else {"REDIS_URL": url}
    return {"FRESHET_IN_FLIGHT": 1, "FRESHET_PRIVATE_ADDRESSES": 1} | shared


def test_page_that_redirects_to_a_paused_host_does_not_block_its_site(
    freshet: Freshet, database: Db, shop: Recorder, settings: dict[str, object]
) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    database.hosts.insert_one({"_id": "localhost", "hold_until": until})
    definition = freshet.wrapper(
        "shop", start_urls=[f"{shop.url}/list"], item_pages="/item/", robots=False, concurrency=1
    )
    for _ in range(2):
        shop.asked.clear()
        result = freshet.crawl(definition, **settings)
        assert [path for path, _ in shop.asked].count("/item/0") == 1
    assert "; 1 still due" in result.err or "nothing visited: 1 target is still due" in result.err
    assert target(database, f"{shop.url}/item/0")["requested"] == 0, "still due, without a visit"
    for n in range(1, ITEMS):
        assert target(database, f"{shop.url}/item/{n}")["refreshed"] == 1


def test_pause_that_prevents_all_visits_is_a_warning(
    freshet: Freshet, database: Db, shop: Recorder, settings: dict[str, object]
) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    database.hosts.insert_one({"_id": "127.0.0.1", "hold_until": until})
    definition = freshet.wrapper(
        "shop", start_urls=[f"{shop.url}/list"], item_pages="/item/", robots=False
    )
    # The log level of cron's jobs. No page was ever read, so this is not a success.
    result = freshet.crawl(definition, "-L", "WARNING", code=1, **settings)
    (line,) = result.err.splitlines()
    assert (
        "WARNING: shop: nothing visited: 1 target is still due because 127.0.0.1 is paused until "
        f"{until:%Y-%m-%d %H:%M} UTC" in line
    )
    assert "; a host is paused if it sends Retry-After or refuses several requests in a row" in line
    assert "; the first run after the pause continues; the exit code is 1 because no page" in line
    assert shop.asked == []


@pytest.mark.parametrize("delay", ["2592000", "99999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_one_busy_page_does_not_stop_its_host_for_long(
    freshet: Freshet, database: Db, shop: Recorder, settings: dict[str, object], delay: str
) -> None:
    definition = freshet.wrapper(
        "shop", start_urls=[f"{shop.url}/list"], item_pages="/item/", robots=False, concurrency=1
    )
    shop.answers["/item/1"] = (503, "")
    shop.extra["/item/1"] = {"Retry-After": delay}
    freshet.crawl(definition, **settings)
    (host,) = database.hosts.find()
    pause = host["hold_until"] - datetime.now(UTC)
    assert pause < timedelta(hours=6)
    (line,) = [x for x in freshet.crawl(definition, **settings).err.splitlines() if "nothing" in x]
    assert "WARNING: shop: nothing visited: " in line
    assert "127.0.0.1 is paused until" in line
    if "REDIS_URL" in settings:
        return  # Redis measures pauses by its own clock
    freshet.crawl(definition, hours=6.1, **settings)
    read = [n for n in range(2, ITEMS) if target(database, f"{shop.url}/item/{n}")["refreshed"]]
    assert len(read) == ITEMS - 2, "the rest of the site is not read after the pause"


def test_pause_of_a_site_that_was_read_before_is_no_failure(
    freshet: Freshet, database: Db, shop: Recorder, settings: dict[str, object]
) -> None:
    definition = freshet.wrapper(
        "shop", start_urls=[f"{shop.url}/list"], item_pages="/item/", robots=False
    )
    freshet.crawl(definition, **settings)
    shop.asked.clear()
    until = datetime.now(UTC) + timedelta(hours=48)
    database.hosts.insert_one({"_id": "127.0.0.1", "hold_until": until})
    # Cron runs during the whole pause, and must not mail it.
    (line,) = freshet.crawl(definition, "-L", "WARNING", hours=25, **settings).err.splitlines()
    assert "127.0.0.1 is paused until" in line
    assert line.endswith("; the first run after the pause continues")
    assert shop.asked == []
