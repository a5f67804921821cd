"""Metrics: files that continue after a restart, addresses, responses, and their documentation."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from scrapy import Request
from scrapy.downloadermiddlewares.stats import DownloaderStats
from scrapy.exceptions import DownloadTimeoutError, IgnoreRequest
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from crawler.config import Config
from crawler.errors import ConfigError, OffLimits
from crawler.fetch.downloader import NotRequested, RunEnded
from crawler.ops.metrics import (
    MAX_FILE_AGE_SECONDS,
    Carried,
    ProcessMetrics,
    TextFile,
    class_of,
    counted,
    result_of,
    samples_to_carry,
)
from crawler.ops.service_metrics import of_processes
from crawler.reports.metrics import (
    Described,
    Fixed,
    dead_letters,
    estimated,
    of_database,
    queue_families,
    text_of,
)
from crawler.storage.redis import QueueState
from crawler.storage.stats import NUMBERS, Sample
from crawler.web.metrics import MetricsSource, probes, router
from crawler.web.options import Address, WebOptions, address_of
from crawler.web.server import create_minimal_app

ROOT = Path(__file__).resolve().parents[3]
NAME = re.compile(r"\bfreshet_\w+")
# Prometheus requires base units; see its naming conventions.
OTHER_UNITS = {"milliseconds", "minutes", "hours", "days", "kilobytes", "megabytes", "percent"}


def parsed(text: bytes) -> dict[str, Metric]:
    """Return metric families by name, parsed with Prometheus's own parser."""
    families = list(text_string_to_metric_families(text.decode()))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family for family in families}


def values(family: Metric, suffix: str = "") -> dict[tuple[tuple[str, str], ...], float]:
    """Return the value of each series; `suffix` selects series of a histogram or a counter."""
    wanted = [sample for sample in family.samples if sample.name == family.name + suffix]
    by_labels = {tuple(sorted(sample.labels.items())): sample.value for sample in wanted}
    assert len(by_labels) == len(wanted), "a series is repeated"
    return by_labels


class Process:
    """A process that records metrics and writes its file, like a crawl does."""

    def __init__(self, folder: Path, name: str = "shop") -> None:
        registry = ProcessMetrics().registry
        buckets = (1.0, 5.0)
        self.seconds = Histogram("own_seconds", "x", ["spider"], buckets=buckets, registry=registry)
        self.file = TextFile(folder, name, registry)

    def read(self) -> dict[str, Metric]:
        return parsed(self.file.path.read_bytes())


def test_counters_continue_after_a_restart(tmp_path: Path) -> None:
    for number in range(1, 4):
        process = Process(tmp_path)
        process.seconds.labels("shop").observe(3.0)
        process.file.write()
        family = process.read()["own_seconds"]
        of_shop = (("process", "shop"), ("spider", "shop"))
        assert values(family, "_count") == {of_shop: number}
        assert values(family, "_sum") == {of_shop: 3.0 * number}
        buckets = values(family, "_bucket")
        assert buckets[("le", "1.0"), *of_shop] == 0
        assert buckets[("le", "5.0"), *of_shop] == buckets[("le", "+Inf"), *of_shop] == number
        process.file.close()


def test_series_without_new_values_are_kept(tmp_path: Path) -> None:
    first = Process(tmp_path)
    first.seconds.labels("shop").observe(3.0)
    first.file.close()
    second = Process(tmp_path)
    second.file.write()
    assert values(second.read()["own_seconds"], "_sum")
    second.file.close()


def test_processes_with_one_name_use_separate_files(tmp_path: Path) -> None:
    one, other = Process(tmp_path), Process(tmp_path)
    for process in (one, other):
        process.file.write()
    assert [process.file.path.name for process in (one, other)] == [
        "freshet-shop.prom",
        "freshet-shop-2.prom",
    ]
    both = [
        sample for p in (one, other) for family in p.read().values() for sample in family.samples
    ]
    assert {sample.labels["process"] for sample in both} == {"shop", "shop-2"}
    one.file.close()
    third = Process(tmp_path)
    assert third.file.path == one.file.path
    for process in (other, third):
        process.file.close()


def test_closed_file_has_no_memory_or_open_file_metrics(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.file.write()
    assert values(process.read()["freshet_process_resident_memory_bytes"])
    process.file.close()
    left = process.read()
    assert "freshet_process_resident_memory_bytes" not in left
    assert "freshet_process_open_fds" not in left
    assert values(left["freshet_process_cpu_seconds"], "_total")
    assert values(left["freshet_metrics_timestamp_seconds"])


def test_samples_of_another_version_are_discarded() -> None:
    (build,) = text_string_to_metric_families('freshet_build_info{version="0.0.1"} 1\n')
    assert samples_to_carry([build], "0.0.1") == {}
    counter = Metric("freshet_x", "x", "counter")
    counter.add_sample("freshet_x_total", {}, 1.0)
    assert list(samples_to_carry([build, counter], "0.0.1")) == ["freshet_x"]
    assert samples_to_carry([build, counter], "0.0.2") == {}
    assert samples_to_carry([counter], "0.0.1") == {}


@pytest.mark.parametrize("left", [b"", b"\xff\xfe", b"freshet_x{ 1\n", b"# a file of others\n"])
def test_a_broken_file_is_replaced(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "freshet-shop.prom").write_bytes(left)
    process = Process(tmp_path)
    process.seconds.labels("shop").observe(1.0)
    process.file.close()
    assert values(process.read()["own_seconds"], "_sum")


def test_only_old_unused_files_are_removed(tmp_path: Path) -> None:
    long_ago = time.time() - MAX_FILE_AGE_SECONDS - 60
    used = Process(tmp_path, "slow")
    used.file.write()
    for name in ("freshet-gone.prom", "freshet-slow.prom", "others.prom"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (long_ago, long_ago))
    (tmp_path / "freshet-late.prom").touch()
    Process(tmp_path).file.close()
    assert {path.name for path in tmp_path.glob("[!.]*")} == {
        "freshet-shop.prom", "freshet-slow.prom", "freshet-late.prom", "others.prom",
    }  # fmt: skip
    used.file.close()


def test_unusable_folder_raises_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^FRESHET_METRICS_DIR .*/file/x: Not a directory$"):
        Process(tmp_path / "file" / "x")


def test_write_failure_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = Process(tmp_path / "x")
    process.file.write()
    (tmp_path / "x").rename(tmp_path / "y")
    process.file.write()
    process.file.write()
    (message,) = caplog.messages
    assert message.startswith("Writing metrics failed, retrying: ")
    (tmp_path / "y").rename(tmp_path / "x")
    process.file.close()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("9463", "127.0.0.1", 9463),
        ("localhost:0", "127.0.0.1", 0),
        (" 0.0.0.0:80 ", "0.0.0.0", 80),
        ("[::1]:9463", "::1", 9463),
    ],
)
def test_valid_addresses_are_parsed(text: str, host: str, port: int) -> None:
    assert address_of(text, "--metrics") == Address(host, port)


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "65536", ":80", "::1:80", "[]:80", "80 80", "\u0661"]
)
def test_invalid_address_raises_a_one_line_error(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^--metrics: .* is not \[HOST:\]PORT\. Examples: 9464, "
    ):
        address_of(text, "--metrics")


def test_a_port_may_be_a_number_in_settings() -> None:
    config = Config.of(Settings({"FRESHET_METRICS_PORT": 9463}))
    assert config.metrics_port == "9463"


def test_public_host_name_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^--port: 'public.example' is not an IP address"):
        address_of("public.example:80", "--port")


@pytest.mark.parametrize(
    ("method", "path", "problem", "status"),
    [
        ("GET", "/metrics", None, 200),
        ("HEAD", "/metrics", "away", 200),
        ("GET", "/-/healthy", "away", 200),
        ("GET", "/-/ready", None, 200),
        ("GET", "/-/ready", "away", 503),
        ("GET", "/", None, 200),
        ("GET", "/nosuch", None, 404),
        ("POST", "/metrics", None, 405),
    ],
)
def test_endpoint_statuses(method: str, path: str, problem: str | None, status: int) -> None:
    async def metrics() -> bytes:
        return b"freshet_x 1\n"

    async def status_text() -> str | None:
        return problem

    response = response_of(MetricsSource(metrics, status_text), method, path)
    assert response.status_code == status
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-type"].startswith("text/plain")


def response_of(source: MetricsSource, method: str, path: str) -> httpx.Response:
    """Return the response of the server of a process."""
    app = create_minimal_app(WebOptions(), [router, probes])
    app.state.metrics = source

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path)

    return asyncio.run(send())


def test_metrics_are_unavailable_before_the_first_read() -> None:
    async def nothing() -> None:
        return None

    assert response_of(MetricsSource(nothing, nothing), "GET", "/metrics").status_code == 503


def test_label_values_are_bounded() -> None:
    assert [class_of(status) for status in ("200", "304", "404", "503", "999", "100", "")] == [
        "2xx", "3xx", "4xx", "5xx", "other", "other", "other",
    ]  # fmt: skip
    reasons = ("finished", "shutdown", "closespider_timeout", "mine 7")
    assert [result_of(why) for why in reasons] == [
        "finished", "stopped", "limited", "other",
    ]  # fmt: skip


def test_requests_that_were_never_sent_are_not_counted() -> None:
    crawler, url = get_crawler(), "http://10.0.0.5/"
    stats = DownloaderStats.from_crawler(crawler)
    never_sent = [IgnoreRequest(), NotRequested(), RunEnded(), OffLimits(url, "private")]
    for error in (*never_sent, DownloadTimeoutError()):
        stats.process_exception(Request(url), error)
    run: Any = SimpleNamespace(crawler=crawler, state=SimpleNamespace(counts=Counter()))
    assert counted(run)["freshet_requests", ""] == 1
    assert counted(run)["freshet_request_failures", ""] == 1


def test_queue_and_dead_letter_metrics() -> None:
    families = [
        *queue_families([QueueState("shop", 5, 4, 3)]),
        dead_letters({"shop": 2}),
    ]
    families_by_name = parsed(text_of(families))
    shop = (("spider", "shop"),)
    assert {name: values(family) for name, family in families_by_name.items()} == {
        "freshet_queue_pending": {shop: 5},
        "freshet_queue_leased": {shop: 4},
        "freshet_queue_workers": {shop: 3},
        "freshet_dead_letters": {shop: 2},
    }


def sample(**columns: Iterable[float]) -> Sample:
    """Return a sample of one spider; columns that are not given are unknown."""
    size = len(list(next(iter(columns.values()))))
    unknown = {name: np.full(size, np.nan) for name in (*NUMBERS, "hours") if name != "seen"}
    given = {name: np.array(list(column)) for name, column in columns.items()}
    names = ("shop",) if size else ()
    return Sample(names, np.zeros(size, np.int64), **unknown | given)


def test_estimates_are_scaled_up_from_a_sample() -> None:
    some = sample(
        visits=[7, np.nan, 14], freshness=[0.5, np.nan, 1.0], age_days=[1, np.nan, 3],
        rate=[0, 1, 0], hours=[10, 10, 10],
    )  # fmt: skip
    ((name, estimate),) = estimated(some, Counter(shop=300))
    assert (name, estimate.planned, estimate.requests_per_day) == ("shop", 200, 300)
    assert (estimate.expected_freshness, estimate.expected_age_seconds) == (0.75, 2 * 86_400)
    assert estimate.present_freshness == 1, "targets unknown to plans are excluded"
    assert estimate.present_age_seconds == pytest.approx(0, abs=1e-3)
    assert np.isnan([estimate.missed_per_week, estimate.delay_seconds]).all()


def catalog() -> list[Described]:
    return [*of_processes(), *of_database()]


def test_metric_names_follow_prometheus_conventions() -> None:
    metrics = catalog()
    assert len({metric.name for metric in metrics}) == len(metrics) > 50
    for name, kind, labels, text in metrics:
        assert re.fullmatch(r"freshet_[a-z_]+", name)
        assert (kind == "counter") == name.endswith("_total"), name
        assert kind in ("counter", "gauge", "histogram"), name
        assert not OTHER_UNITS & set(name.split("_")), name
        assert not name.endswith(("_count", "_sum", "_bucket")), name
        assert text.endswith("."), name
        assert all(re.fullmatch("[a-z_]+", label) for label in labels), name


@pytest.mark.parametrize("file", ["docs/how-to/monitor.md", "deploy/prometheus-rules.yaml"])
def test_queries_and_alerts_use_existing_metrics(file: str) -> None:
    named = set(NAME.findall((ROOT / file).read_text(encoding="utf-8")))
    metrics = catalog()
    parts = {f"{metric.name}_bucket" for metric in metrics if metric.type == "histogram"}
    assert named <= {metric.name for metric in metrics} | parts


def test_the_docs_name_every_alert() -> None:
    rules = (ROOT / "deploy/prometheus-rules.yaml").read_text(encoding="utf-8")
    page = (ROOT / "docs/how-to/monitor.md").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) >= 5
    assert re.findall(r"^\| `(Freshet\w+)` \|", page, re.M) == alerts


def test_only_last_success_gauge_is_carried_over() -> None:
    last = Metric("freshet_run_last_success_timestamp_seconds", "x", "gauge")
    for spider, at in (("shop", 5.0), ("news", 6.0)):
        last.add_sample(last.name, {"process": "p", "spider": spider}, at)
    (build,) = text_string_to_metric_families('freshet_build_info{version="1"} 1\n')
    past = samples_to_carry([last, build], "1")
    now = Metric(last.name, "x", "gauge")
    now.add_sample(now.name, {"spider": "shop"}, 9.0)
    registry = CollectorRegistry()
    registry.register(Fixed([now]))
    families = parsed(generate_latest(Carried(registry, past, "p")))
    by_spider = {dict(series)["spider"]: at for series, at in values(families[last.name]).items()}
    assert by_spider == {"shop": 9.0, "news": 6.0}


def test_prometheus_client_is_imported_lazily() -> None:
    modules = "crawler.ops.extensions, crawler.ops.service, crawler.cli.commands.metrics"
    code = f"import {modules}, sys; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
