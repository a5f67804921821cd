"""Prometheus metrics of crawls, of the service and of the database."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

import pytest
from bson import ObjectId
from prometheus_client.parser import text_string_to_metric_families

from crawler.config import Config
from crawler.items import Kind
from crawler.reports.metrics import read, text_of
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.store import Store
from crawler.web.dependencies import WebDatabase
from crawler.web.metrics import DatabaseMetrics
from tests.integration.harness import (
    LIMIT_SECONDS,
    Db,
    Freshet,
    Pages,
    Result,
    Row,
    asked,
    outcomes,
)
from tests.integration.inside import in_json, run
from tests.integration.known_pages import DAY, HOUR, NOW, clock, never_seen, page, put
from tests.site.running import RunningSite

Figures = dict[tuple[str, ...], float]
SHORT = {"FRESHET_LIST_INTERVAL_HOURS": 0.0002, "FRESHET_ITEM_INTERVAL_HOURS": 0.0002}
SHOP = "https://shop.example"
COUNTED = "freshet_visits_total"


def figures(text: str) -> Figures:
    """Return values by metric name and label values, in the order of the label names."""
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    values: Figures = {}
    for sample in samples:
        labels = sorted(label for label in sample.labels.items() if label[0] != "process")
        values[sample.name, *(value for _, value in labels)] = sample.value
    assert len(values) == len(samples), "a series is repeated"
    return values


def get(url: str, host: str | None = None) -> tuple[int, str]:
    """Return the status and text of a response. host: value of the Host header."""
    http_request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(http_request, timeout=20) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until(url: str, status: int) -> None:
    """Wait until a URL returns this status."""
    deadline = time.monotonic() + 20
    while get(url)[0] != status:
        assert time.monotonic() < deadline
        time.sleep(0.05)


LISTENS = re.compile(r"http://(127\.0\.0\.1|0\.0\.0\.0):")


class Serving:
    """Run a command that prints its address; end it by SIGTERM and check that it succeeds."""

    def __init__(self, freshet: Freshet, *words: object, **env: object) -> None:
        self.process = freshet.start(*words, **env)
        self.err = ""

    def __enter__(self) -> Self:
        assert self.process.stderr is not None
        while not LISTENS.search(line := self.process.stderr.readline()):
            assert line, self.err
            self.err += line
        self.url = line[line.index("http://") :].strip().removesuffix("/metrics")
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        _, err = self.process.communicate(timeout=LIMIT_SECONDS)
        self.err += err
        if exception[0] is None:
            assert self.process.returncode == 0, self.err
            assert "Traceback" not in self.err, self.err

    def metrics(self) -> Figures:
        """Return the current metrics."""
        status, text = get(f"{self.url}/metrics")
        assert status == 200, text
        return figures(text)


def shop(freshet: Freshet, pages: Pages, name: str = "shop", **keys: object) -> Path:
    """Define a site with a list and two items."""
    paths = [f"/{name}/item-{k}.html" for k in range(2)]
    pages.list(f"/{name}/list.html", paths)
    for path in paths:
        pages.item(path, path)
    given = {"start_urls": [f"{pages.url}/{name}/list.html"], "item_pages": f"/{name}/item"}
    return freshet.wrapper(name, **given | {"fields": {"title": "h1"}} | keys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "textfiles"


def test_metrics_file_accumulates_over_crawls(
    freshet: Freshet, database: Db, pages: Pages, folder: Path
) -> None:
    file = shop(freshet, pages)
    for hours in (0, 30):
        freshet.crawl(file, hours=hours, FRESHET_METRICS_DIR=folder)
        metrics = figures((folder / "freshet-shop.prom").read_text())
        logged = {outcome: n for outcome, n in outcomes(database).items() if n}
        counted = {key[1]: n for key, n in metrics.items() if key[0] == COUNTED and n}
        assert counted == logged
        assert metrics["freshet_requests_total", "shop"] == len(pages.requests())
        by_class = {key[1]: n for key, n in metrics.items() if key[0] == "freshet_responses_total"}
        assert sum(by_class.values()) == len(pages.requests())
        # The site has no robots.txt.
        assert by_class["4xx"] == database.runs.count_documents({})
        assert metrics[
            "freshet_storage_batch_visits_sum", "shop"
        ] == database.visits.count_documents({})
        assert metrics["freshet_response_to_stored_seconds_count", "shop"] == sum(logged.values())
        assert metrics["freshet_runs_running", "shop"] == 0
    assert metrics[COUNTED, "not_modified", "shop"] == 3
    assert metrics["freshet_runs_ended_total", "finished", "shop"] == 2
    assert metrics["freshet_run_duration_seconds_count", "shop"] == 2
    assert ("freshet_process_open_fds",) not in metrics


def test_crawl_succeeds_if_metrics_cannot_be_written(
    freshet: Freshet, database: Db, pages: Pages, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = freshet.crawl(shop(freshet, pages), FRESHET_METRICS_DIR=tmp_path / "file" / "x")
    assert re.search("Metrics disabled: FRESHET_METRICS_DIR .*: Not a directory", done.err)
    assert outcomes(database)["new"] == 3


@pytest.mark.soak
def test_killed_crawl_stays_visible_until_the_next_crawl(
    freshet: Freshet, database: Db, pages: Pages, folder: Path
) -> None:
    file, place = (
        shop(freshet, pages, delay_seconds=0.3, concurrency=1),
        folder / "freshet-shop.prom",
    )
    words = ("crawl", "site", "-a", f"wrapper={file}")
    process = freshet.start(*words, FRESHET_METRICS_DIR=folder)
    deadline = time.monotonic() + 20
    while not database.visits.count_documents({}):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate()
    left_by_kill = figures(place.read_text())
    assert left_by_kill["freshet_runs_running", "shop"] == 1
    assert left_by_kill["freshet_process_open_fds",] > 0
    freshet.crawl(file, FRESHET_METRICS_DIR=folder)
    metrics = figures(place.read_text())
    assert metrics["freshet_runs_running", "shop"] == 0
    assert metrics["freshet_runs_started_total", "shop"] == 2
    assert metrics["freshet_runs_ended_total", "finished", "shop"] == 1


def test_failed_run_is_counted(freshet: Freshet, pages: Pages, folder: Path) -> None:
    code = f"""
from spiders.wrapper import WrapperSpider
class Bug(WrapperSpider):
    name = "bug"
    start_urls = ["{pages.url}/"]
    item_pages = "/i"
    def parse_target(self, response):
        raise TypeError("a bug")
"""
    (freshet.folder / "bug_of_metrics.py").write_text(code, encoding="utf-8")
    words = ("crawl", "bug", "-s", "SPIDER_MODULES=bug_of_metrics")
    env = {"PYTHONPATH": freshet.folder, "FRESHET_METRICS_DIR": folder}
    assert freshet(*words, **env).code == 1
    metrics = figures((folder / "freshet-bug.prom").read_text())
    assert metrics["freshet_runs_ended_total", "failed", "bug"] == 1
    assert ("freshet_run_last_success_timestamp_seconds", "bug") not in metrics


def test_retry_after_response_is_counted(freshet: Freshet, site: RunningSite, folder: Path) -> None:
    url = f"{site.url}/edge/retry-after/1"
    file = freshet.wrapper("edge", start_urls=[url], item_pages="/nothing", robots=False)
    freshet.crawl(file, code=1, FRESHET_METRICS_DIR=folder)
    metrics = figures((folder / "freshet-edge.prom").read_text())
    assert asked(site).total() == 2
    assert metrics["freshet_requests_total", "edge"] == 2
    later = [metrics["freshet_responses_total", code, "edge"] for code in ("4xx", "5xx")]
    assert (metrics["freshet_responses_total", "2xx", "edge"], sum(later)) == (1, 1)


def test_service_serves_metrics_over_http(freshet: Freshet, database: Db, pages: Pages) -> None:
    broken = freshet.folder / "broken.toml"
    broken.write_text("name = ", encoding="utf-8")
    words = ("refresh", "run", shop(freshet, pages), shop(freshet, pages, "news"), broken)
    with Serving(freshet, *words, "--metrics", "0", **SHORT) as service:
        until(f"{service.url}/-/ready", 200)
        deadline = time.monotonic() + 20
        while outcomes(database)["not_modified"] < 6:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        metrics = service.metrics()
        assert get(f"{service.url}/-/healthy") == (200, "healthy\n")
        assert get(f"{service.url}/nosuch")[0] == 404
    for name in ("shop", "news"):
        assert metrics[COUNTED, "new", name] == 3
        assert metrics["freshet_runs_started_total", name] >= 2
        assert metrics["freshet_runs_ended_total", "failed", name] == 0
        assert metrics["freshet_refresh_failures_total", name] == 0
    assert metrics["freshet_refresh_failures_total", str(broken)] >= 1
    assert metrics["freshet_refresh_jobs_total", "done", "prune"] == 0
    assert metrics["freshet_process_resident_memory_bytes",] > 1e6
    assert metrics["freshet_reactor_lag_seconds_count",] >= 0


@pytest.mark.soak
def test_service_without_port_writes_a_file(freshet: Freshet, pages: Pages, folder: Path) -> None:
    words = ("refresh", "run", shop(freshet, pages), "--for", "5s")
    assert freshet(*words, FRESHET_METRICS_DIR=folder).code == 0
    (file,) = folder.glob("*.prom")
    assert file.name == "freshet-refresh.prom"
    assert figures(file.read_text())[COUNTED, "new", "shop"] == 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("refresh", "run", "--metrics", "x"), "--metrics: 'x' is not [HOST:]PORT"),
        (
            ("refresh", "run", "--metrics", "x:1"),
            "--metrics: 'x' is not an IP address. Use 127.0.0.1",
        ),
        (("metrics", "--out", "/nosuch/x.prom"), "--out /nosuch/x.prom: No such file or directory"),
    ],
)
def test_invalid_options_are_one_line_errors(
    freshet: Freshet, words: tuple[str, ...], complaint: str
) -> None:
    done = run(freshet, *words)
    assert (done.code, done.out) == (1, "")
    assert done.complaint.startswith(f"scrapy {words[0]}: {complaint}")


def test_port_in_use_is_a_one_line_error(freshet: Freshet, pages: Pages) -> None:
    port = pages.url.rpartition(":")[2]
    done = freshet("refresh", "run", shop(freshet, pages), "--metrics", port)
    assert done.code == 1
    assert f"--metrics 127.0.0.1:{port}: Address already in use" in done.complaint


def plan(**own: object) -> Row:
    usual = {"id": ObjectId(), "visits_per_week": 7.0, "freshness": 0.9, "age_days": 0.5}
    return usual | {"rate_per_week": 1.0, "rate_low": 1.0, "rate_high": 1.0} | own


def visit(outcome: str, at: datetime, **own: object) -> Row:
    row = {"spider": "shop", "target": f"{SHOP}/1", "at": at, "outcome": outcome, "changed": 0}
    return row | own


@pytest.fixture
def filled(stored: tuple[Db, str]) -> tuple[Db, str]:
    """Store a shop with a plan, a change log and runs, and a spider without a plan."""
    db, uri = stored
    put(db, uri, [
        page(f"{SHOP}/1", plan=plan(), next_visit=NOW - 2 * HOUR),
        page(f"{SHOP}/2", plan=plan(freshness=0.7), next_visit=NOW - HOUR / 2),
        page(f"{SHOP}/3", consecutive_errors=6),
        page(f"{SHOP}/4", consecutive_errors=1, gone=True),
        page(f"{SHOP}/", kind=Kind.LIST),
        never_seen(f"{SHOP}/5", next_visit=NOW + DAY),
        page("https://news.example/", spider="news", kind=Kind.FEED),
    ])  # fmt: skip
    db.visits.insert_many([
        visit("changed", NOW - HOUR / 2),
        visit("unchanged", NOW - HOUR / 2, shared_fetch=True),
        visit("unchanged", NOW - 5 * HOUR),
        visit("error", NOW - 5 * HOUR),
        visit("new", NOW - 2 * DAY),
    ])  # fmt: skip
    made = {"at": NOW - 3 * DAY, "spiders": ["shop"], "budget_per_day": 14.0, "state": "active"}
    db.plans.insert_one(made)
    began = NOW - timedelta(minutes=10)
    counts = {"visits": 7, "changed": 2, "over_cap": 4}
    db.runs.insert_many([
        {"spider": "shop", "started": NOW - DAY, "finished": NOW - DAY, "reason": "shutdown"},
        {"spider": "shop", "started": began, "finished": began + timedelta(seconds=90),
         "reason": "my own", "counts": counts},
        {"spider": "shop", "started": NOW - timedelta(minutes=1), "finished": None},
    ])  # fmt: skip
    db.posts.insert_many([
        {"spider": "shop", "url": f"{SHOP}/{n}", "first_seen": NOW, "content_hash": "h"}
        | ({"duplicate_of": f"shop {SHOP}/1"} if n > 2 else {})
        for n in range(1, 5)
    ])  # fmt: skip
    return stored


def printed(freshet: Freshet, *words: object) -> Result:
    done = run(freshet, "metrics", *words, hours=clock())
    assert (done.code, done.err) == (0, ""), done.err
    return done


@pytest.mark.usefixtures("filled")
def test_database_metrics_match_its_contents(freshet: Freshet) -> None:
    metrics = figures(printed(freshet).out)
    of_shop = {key[0]: value for key, value in metrics.items() if key[1:] == ("shop",)}
    assert metrics["freshet_targets", "item", "shop"] == 4
    assert metrics["freshet_targets", "list", "shop"] == 1
    assert metrics["freshet_targets", "feed", "news"] == 1
    assert (of_shop["freshet_targets_due"], of_shop["freshet_targets_overdue"]) == (2, 1)
    assert of_shop["freshet_targets_oldest_due_seconds"] == pytest.approx(7200, abs=60)
    assert metrics["freshet_targets_oldest_due_seconds", "news"] == 0
    assert of_shop["freshet_targets_never_visited"] == 1
    assert [metrics["freshet_targets_failing", n, "shop"] for n in "15"] == [1, 1], (
        "gone pages are not failing"
    )
    assert of_shop["freshet_targets_most_errors_in_a_row"] == 6
    recent = {key[1:]: n for key, n in metrics.items() if key[0] == "freshet_recent_requests" and n}
    assert recent == {
        ("changed", "shop", "1h"): 1, ("changed", "shop", "1d"): 1,
        ("unchanged", "shop", "1d"): 1, ("error", "shop", "1d"): 1,
    }  # fmt: skip
    assert of_shop["freshet_plan_budget_requests_per_day"] == 14
    assert of_shop["freshet_plan_timestamp_seconds"] == (NOW - 3 * DAY).timestamp()
    assert (of_shop["freshet_plan_targets"], of_shop["freshet_plan_requests_per_day"]) == (2, 2)
    assert of_shop["freshet_plan_freshness_ratio"] == pytest.approx(0.8)
    assert of_shop["freshet_plan_age_seconds"] == 43_200
    assert of_shop["freshet_current_freshness_ratio"] == pytest.approx(
        2.718281828 ** (-1 / 168), abs=1e-4
    )
    assert of_shop["freshet_last_run_duration_seconds"] == 90
    assert metrics["freshet_last_run_info", "other", "shop"] == 1
    assert metrics["freshet_last_run_counts", "over_cap", "shop"] == 4
    assert metrics["freshet_last_run_counts", "new", "shop"] == 0
    assert (of_shop["freshet_posts"], of_shop["freshet_duplicate_posts"]) == (4, 2)
    assert metrics["freshet_database_documents", "targets"] == 7
    assert metrics["freshet_database_bytes", "data"] > 1000
    assert metrics["freshet_database_up",] == 1
    assert ("freshet_plan_freshness_ratio", "news") not in metrics


@pytest.mark.usefixtures("filled")
def test_metrics_are_written_to_a_file_and_printed_as_json(
    freshet: Freshet, tmp_path: Path
) -> None:
    assert printed(freshet, "--out", tmp_path / "x.prom").out == ""
    assert figures((tmp_path / "x.prom").read_text())["freshet_posts", "shop"] == 4
    assert [path.name for path in tmp_path.glob("*x.prom*")] == ["x.prom"]
    rows = in_json(freshet, "metrics", hours=clock())
    assert {"name": "freshet_posts", "labels": {"spider": "shop"}, "value": 4} in rows


def test_empty_database_has_only_database_metrics(freshet: Freshet) -> None:
    metrics = figures(printed(freshet).out)
    assert {key[0] for key in metrics} == {
        "freshet_database_bytes", "freshet_database_documents", "freshet_database_up",
        "freshet_database_read_seconds", "freshet_database_read_timestamp_seconds",
        "freshet_notification_events_pending", "freshet_notification_events_oldest_seconds",
    }  # fmt: skip


def test_large_spiders_are_sampled(filled: tuple[Db, str], monkeypatch: pytest.MonkeyPatch) -> None:
    db, uri = filled
    rows = [
        page(f"{SHOP}/many/{n}", plan=plan(freshness=n % 2, visits_per_week=n % 4))
        for n in range(2000)
    ]
    db.targets.insert_many(rows)
    monkeypatch.setattr("crawler.storage.stats.MAX_UNSAMPLED", 100)
    monkeypatch.setattr("crawler.storage.stats.SAMPLE_SIZE", 1000)

    async def metrics() -> str:
        store = await Store.open(Config.load(mongo_uri=uri))
        try:
            return text_of(await read(store)).decode()
        finally:
            await store.close()

    values = figures(asyncio.run(metrics()))
    assert values["freshet_targets", "item", "shop"] == 2004, "counts are exact"
    assert values["freshet_plan_freshness_ratio", "shop"] == pytest.approx(0.5, abs=0.1)
    assert values["freshet_plan_requests_per_day", "shop"] == pytest.approx(2000 * 1.5 / 7, rel=0.2)


def test_scrapes_share_cached_database_metrics(filled: tuple[Db, str]) -> None:
    _, uri = filled

    async def scrapes(cache_seconds: float) -> list[Figures]:
        database = WebDatabase(Config.load(mongo_uri=uri))
        latest = DatabaseMetrics(database, cache_seconds)
        try:
            texts = await asyncio.gather(*(latest.exposition() for _ in range(5)))
            texts.append(await latest.exposition())
        finally:
            await latest.close()
            await database.close()
        return [figures(text.decode()) for text in texts if text is not None]

    responses = asyncio.run(scrapes(60))
    assert len(responses) == 6
    assert len({values["freshet_database_read_timestamp_seconds",] for values in responses}) == 1


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    config = Config.load(data_dir=tmp_path_factory.mktemp("d"), mongo_uri=None, mongo_cache_gb=0.25)
    made = EmbeddedServer.of(config)
    made.start()
    yield made
    made.stop()


def test_loopback_metrics_require_a_local_host_header(freshet: Freshet, pages: Pages) -> None:
    words = ("refresh", "run", shop(freshet, pages), "--metrics", "0")
    with Serving(freshet, *words, FRESHET_METRICS_HOSTS="metrics.example") as serving:
        port = serving.url.rsplit(":", 1)[1]
        for host, status in (
            (f"127.0.0.1:{port}", 200), ("localhost", 200), ("[::1]", 200), ("evil.test", 421),
            (f"evil.test:{port}", 421), ("192.168.1.1", 421), ("metrics.example", 421),
        ):  # fmt: skip
            for path in ("metrics", "-/healthy"):
                assert get(f"{serving.url}/{path}", host)[0] == status, host


def test_public_metrics_require_a_private_or_allowed_host(freshet: Freshet, pages: Pages) -> None:
    words = ("refresh", "run", shop(freshet, pages), "--metrics", "0.0.0.0:0")
    with Serving(freshet, *words, FRESHET_METRICS_HOSTS="Metrics.example,other.example") as serving:
        url = f"http://127.0.0.1:{serving.url.rsplit(':', 1)[1]}"
        for host, status in (
            ("127.0.0.1:9464", 200), ("10.0.0.7", 200), ("[fd00::7]:9464", 200),
            ("freshet:9464", 200), ("metrics.example", 200),
            ("evil.test", 421), ("evil.test:9464", 421), ("a b", 421),
        ):  # fmt: skip
            status_of_host, text = get(f"{url}/metrics", host)
            assert status_of_host == status, host
            assert status == 200 or "FRESHET_METRICS_HOSTS" in text


@pytest.mark.soak
def test_unavailable_database_is_reported(server: EmbeddedServer, tmp_path: Path) -> None:
    freshet = Freshet(tmp_path, MONGO_URI=server.uri, FRESHET_MONGO_TIMEOUT_SECONDS=0.5)
    with freshet, Serving(freshet, "web", "--port", "0", "--no-service") as serving:
        serving.url = serving.url.rstrip("/")
        assert get(f"{serving.url}/health")[0] == 200
        assert serving.metrics()["freshet_database_up",] == 1
        server.stop()
        assert get(f"{serving.url}/health")[0] == 503
        assert serving.metrics() == {("freshet_database_up",): 0}
    assert serving.err == "", "logs something besides the address"
