"""Findings of `scrapy doctor`: the status for each result of a check."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from scrapy.robotstxt import ProtegoRobotParser
from scrapy.settings import Settings

from crawler.config import PROJECT, Config, UnknownVariable
from crawler.errors import ConfigError
from crawler.extract.site_definition import Wrapper
from crawler.notify.rounds import NotifyStatus
from crawler.ops import doctor, doctor_servers
from crawler.ops.findings import Finding, Status, doctor_report, failed, lines, ok, warning
from crawler.ops.jobs import StoredSites
from crawler.storage import outbox
from crawler.storage.client import VERSION
from crawler.storage.health import Server as Mongo
from crawler.storage.leases import Holder
from crawler.storage.redis import RedisServer as Redis
from crawler.storage.runs import Fetches, LastRun
from crawler.storage.schema import IndexProblem
from spiders.probe import Answer

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
OK, WARNING, FAILED = Status.OK, Status.WARNING, Status.FAILED
DEFAULTS = Config.load()
MONGO = Mongo((6, 0, 5), None, 0, False, 0.01, 0.5, 90 * doctor_servers.GB, 100 * doctor_servers.GB)
REDIS = Redis("Valkey", (9, 1, 0), "noeviction", 0, True, False, True, 0.0, 0.2)


def statuses(findings: list[Finding]) -> list[Status]:
    return [finding.status for finding in findings]


def only_problem(findings: list[Finding]) -> Finding:
    """Return the only finding that is not OK."""
    (finding,) = (result for result in findings if result.status is not OK)
    return finding


def test_findings_are_lines_followed_by_a_summary() -> None:
    findings = [
        ok("python", "3.13"),
        warning("redis", "no file", "set it"),
        failed("x", "bad", of="b"),
    ]
    assert lines(findings, 80) == [
        "ok       python  3.13",
        "warning  redis   no file -> set it",
        "failed   x b     bad",
        "3 checks: 1 ok, 1 warning, 1 failed",
    ]


def test_long_finding_is_wrapped_in_its_column() -> None:
    words = "cannot be reached: the name of the host is unknown"
    first, *others, _ = lines([warning("robots.txt", words, "is it right?")], 48)[0].splitlines()
    assert first.startswith("warning  robots.txt  cannot")
    assert all(line.startswith(" " * 21) for line in others)
    assert " ".join([first[21:], *others]).split()[:3] == ["cannot", "be", "reached:"]


def test_json_report_is_complete() -> None:
    report = doctor_report([warning("redis", "no file", "set it", of="shop")])
    assert report == {
        "ok": True,
        "failed": 0,
        "warnings": 1,
        "findings": [
            {"check": "redis", "status": "warning", "found": "no file", "fix": "set it",
             "of": "shop", "broken": 0, "examples": []},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("version", "system", "status"),
    [
        ((3, 10, 9), "Linux", FAILED),
        ((3, 11, 0), "Linux", OK),
        ((3, 13, 2), "Linux", OK),
        ((3, 14, 0), "Linux", WARNING),
        ((3, 12, 0), "Darwin", WARNING),
    ],
)
def test_python_version_and_platform(version: tuple[int, ...], system: str, status: Status) -> None:
    assert doctor.judge_python(version, system).status is status


def test_project_folder_is_ok() -> None:
    assert statuses(doctor.judge_folder(PROJECT, ["", "/usr/lib/python3"])) == [OK]
    assert statuses(doctor.judge_folder(PROJECT / "docs", ["/usr/lib/python3"])) == [OK]


def test_working_directory_in_a_package_hides_libraries() -> None:
    """Check the case of `python -m scrapy` in crawler/, which would import crawler/redis."""
    finding = only_problem(doctor.judge_folder(PROJECT / "crawler", [""]))
    assert finding.status is FAILED
    assert str(PROJECT / "crawler") in finding.found


def test_scrapy_cfg_of_another_project_is_reported(tmp_path: Path) -> None:
    (tmp_path / "scrapy.cfg").write_text("[settings]\n")
    assert f"scrapy.cfg is in {tmp_path}" in only_problem(doctor.judge_folder(tmp_path, [])).found


def test_deleted_working_directory_is_reported() -> None:
    assert only_problem(doctor.judge_folder(None, [])).found == "the working directory was deleted"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that installs the distribution `greedy` with one package."""

    def put(package: str) -> Path:
        init = tmp_path / package / "__init__.py"
        init.parent.mkdir()
        init.write_text("")
        info = tmp_path / "greedy-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1.0\n")
        (info / "top_level.txt").write_text(f"{package}\n")
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
        return init

    return put


def test_conflicting_package_is_a_warning(install: Callable[[str], Path]) -> None:
    init = install("spiders")
    finding = only_problem(doctor.check_names())
    assert finding.status is WARNING, "in the project's folder, its own modules come first"
    assert finding.found == f"package 'spiders' is also installed by greedy ({init})"
    assert finding.fix == f"pip uninstall greedy, or always run python -m scrapy in {PROJECT}"


def test_conflicting_package_before_the_project_is_a_failure(
    install: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put installed packages before the project on sys.path, like the `scrapy` script does."""
    install("schedules")
    first = sys.path[-1]
    monkeypatch.setattr(sys, "path", [first, *sys.path[:-1]])
    monkeypatch.delitem(sys.modules, "schedules")
    finding = only_problem(doctor.check_names())
    assert finding.status is FAILED
    assert "or run python -m scrapy in" in finding.fix


def test_conflicting_tests_package_is_only_a_warning(
    install: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("tests")
    assert only_problem(doctor.check_names()).status is WARNING


@pytest.mark.parametrize(
    ("free_gb", "status"), [(90, OK), (1.5, WARNING), (0.2, FAILED)], ids=["ample", "low", "none"]
)
def test_free_disk_space(free_gb: float, status: Status) -> None:
    assert (
        doctor_servers.judge_free_space("disk", free_gb * doctor_servers.GB, "/data", 0.5).status
        is status
    )


def test_missing_data_folder_is_checked_by_its_parent(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    (finding,) = doctor_servers.check_data_folder(Config.load(data_dir=deep, mongo_uri=None))
    assert finding.found.startswith(f"{deep}: ")
    assert not deep.exists(), "the check must not create the folder"
    (tmp_path / "a").write_text("")
    (finding,) = doctor_servers.check_data_folder(Config.load(data_dir=deep, mongo_uri=None))
    assert (finding.status, finding.found) == (FAILED, f"{deep}: {tmp_path / 'a'} is not a folder")


@pytest.mark.parametrize(
    ("ahead_seconds", "status"),
    [(0.4, OK), (-0.9, OK), (2, WARNING), (-599, WARNING), (-601, FAILED), (601, FAILED)],
)
def test_clock_offset(ahead_seconds: float, status: Status) -> None:
    finding = doctor_servers.judge_clock("MongoDB", ahead_seconds, 600)
    assert finding.status is status
    assert ("behind" in finding.found) == (ahead_seconds < -1)
    # Freshet does not compare times of the Redis server with other times.
    assert doctor_servers.judge_clock("Valkey", ahead_seconds).status is (
        OK if status is OK else WARNING
    )


def test_unknown_variables_are_reported_with_suggestions() -> None:
    unknown = [
        UnknownVariable("FRESHET_BUGDET", "", "FRESHET_BUDGET"),
        UnknownVariable("FRESHET_XYZZY", "", None),
    ]
    findings = list(doctor.judge_variables(unknown))
    assert [(finding.found, finding.fix) for finding in findings] == [
        ("FRESHET_BUGDET is not a Freshet setting", "did you mean FRESHET_BUDGET?"),
        ("FRESHET_XYZZY is not a Freshet setting", "see docs/reference/settings.md"),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"redis_url": "redis://r"}, "other machines cannot use the embedded MongoDB"),
        ({"clock_offset_hours": 3}, "FRESHET_CLOCK_OFFSET_HOURS=3 shifts all times"),
        ({"item_interval_hours": 900}, "FRESHET_ITEM_INTERVAL_HOURS=900 is longer than"),
        (
            {"budget": 100, "daily_cap": 90},
            "FRESHET_DAILY_CAP=90 is below the budget of 100 requests",
        ),
        ({"budget": 100, "hourly_cap": 4}, "allows fewer requests a day than the budget, 100"),
        ({"budget": 9, "shared_budget": True, "feed_budget": 9}, "is ignored because"),
        ({"contact": ""}, "the user agent gives site owners no contact"),
        ({"private_addresses": True}, "lets any page make Freshet fetch private addresses"),
    ],
)
def test_questionable_settings_are_warnings(given: dict[str, object], message: str) -> None:
    config = Config.load(**{"contact": "a@b.example", "mongo_uri": None} | given)
    (finding,) = doctor.judge_settings(config)
    assert finding.status is WARNING
    assert message in finding.found


def test_private_hosts_are_listed() -> None:
    config = Config.load(contact="a@b.example", mongo_uri=None, private_hosts="wiki.lan:80,b:81")
    (finding,) = doctor.check_settings(config)
    assert finding.status is OK
    assert finding.found.endswith(" allows these hosts in private networks: wiki.lan:80, b:81")


def test_env_file_key_without_a_value_is_reported() -> None:
    (finding,) = doctor.judge_env_file({"freshet_budget": None, "mongo_uri": "mongodb://x"})
    assert finding.found.endswith(".env: freshet_budget has no value")


def test_unreadable_env_file_raises_a_one_line_error(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(b"FRESHET_CONTACT=\xff\xfe\n")
    with pytest.raises(ConfigError, match=r"\.env cannot be read: not UTF-8$"):
        Config.load(_env_file=path)


@pytest.mark.parametrize(
    ("server", "status", "message"),
    [
        (MONGO, OK, "6.0.5, standalone, 0.5 ms"),
        (replace(MONGO, version=(4, 2, 0)), FAILED, "4.2.0"),
        (replace(MONGO, version=(5, 0, 3)), WARNING, "5.0.3"),
        (replace(MONGO, round_trip_ms=80), WARNING, "80.0 ms round trip"),
        (replace(MONGO, replica_set="rs0", members=3), OK, "replica set rs0 of 3"),
        (replace(MONGO, is_router=True), OK, "mongos"),
    ],
)
def test_mongodb_server_findings(server: Mongo, status: Status, message: str) -> None:
    first = doctor_servers.judge_mongodb(server, DEFAULTS)[0]
    assert first.status is status
    assert message in first.found


def test_replica_set_of_two_members_is_reported() -> None:
    server = replace(MONGO, replica_set="rs0", members=2)
    assert (
        only_problem(doctor_servers.judge_mongodb(server, DEFAULTS)).found
        == "replica set rs0 has two members"
    )


def test_mongodb_disk_space() -> None:
    assert (
        only_problem(doctor_servers.judge_mongodb(replace(MONGO, free_bytes=1), DEFAULTS)).check
        == "mongodb disk"
    )
    hidden = replace(MONGO, free_bytes=None, total_bytes=None)
    assert statuses(doctor_servers.judge_mongodb(hidden, DEFAULTS)) == [OK]


@pytest.mark.parametrize(
    ("version", "status"),
    [(None, OK), (VERSION, OK), (VERSION - 1, WARNING), (VERSION + 1, FAILED)],
)
def test_data_version(version: int | None, status: Status) -> None:
    assert doctor_servers.judge_data_version("freshet", version).status is status


def test_only_unique_index_problems_are_failures() -> None:
    lack = IndexProblem("posts", "url_1", False, False, 'db.posts.createIndex({"url": 1}, {})')
    findings = doctor_servers.judge_indexes([lack, replace(lack, unique=True, differs=True)])
    assert statuses(findings) == [WARNING, FAILED]
    assert findings[0].fix == 'in mongosh: db.posts.createIndex({"url": 1}, {})'


def test_healthy_redis_is_ok() -> None:
    assert set(statuses(doctor_servers.judge_redis(REDIS))) == {OK}
    assert doctor_servers.judge_redis(REDIS)[0].found == "Valkey 9.1.0, 0.2 ms round trip"


@pytest.mark.parametrize(
    ("server", "check", "status"),
    [
        (replace(REDIS, version=(3, 2)), "redis", FAILED),
        (replace(REDIS, runs_scripts=False), "redis scripts", FAILED),
        (replace(REDIS, policy="volatile-lru"), "redis memory", WARNING),
        (replace(REDIS, policy=None), "redis memory", WARNING),
        (replace(REDIS, is_kept=False), "redis persistence", WARNING),
        (replace(REDIS, is_kept=None), "redis persistence", WARNING),
        (replace(REDIS, is_failing=True), "redis persistence", FAILED),
        (replace(REDIS, ahead_seconds=-40), "clock", WARNING),
    ],
)
def test_redis_problems_are_reported(server: Redis, check: str, status: Status) -> None:
    finding = only_problem(doctor_servers.judge_redis(server))
    assert (finding.check, finding.status) == (check, status)


def at(hours_ago: float) -> datetime:
    return NOW - timedelta(hours=hours_ago)


@pytest.mark.parametrize(
    ("last_run", "status", "message"),
    [
        (None, OK, "never run; start with scrapy crawl shop"),
        (
            LastRun(at(3), at(2), "finished", at(2), 0, None), OK,
            "ended 2 h ago (finished); nothing is due",
        ),
        (
            LastRun(at(3), at(2), "finished", at(2), 7, at(5)), OK,
            "ended 2 h ago (finished); 7 targets due, the oldest for 5 h",
        ),
        (
            LastRun(at(30), None, None, at(0.1), 0, None), WARNING,
            "interrupted 6 min ago; nothing is due",
        ),
        (
            LastRun(at(30), None, None, at(20), 1, at(1)), WARNING,
            "interrupted 20 h ago; 1 target due, the oldest for 60 min",
        ),
        (
            LastRun(at(2), None, None, None, 100_000, at(2)), WARNING,
            "interrupted 2 h ago; 100,000 targets or more due, the oldest for 2 h",
        ),
        (
            LastRun(at(3), at(2), "finished", at(9), 0, None, Fetches(at(9), 300, 2, "x", "u")),
            OK,
            "ended 2 h ago (finished); nothing is due; 2 of 300 pages failed 9 h ago, most often: "
            "x (u)",
        ),
        (
            LastRun(at(3), at(2), "finished", at(2), 0, None, Fetches(at(2), 20, 2)), WARNING,
            "ended 2 h ago (finished); nothing is due; 2 of 20 pages failed 2 h ago",
        ),
        (
            LastRun(at(3), at(2), "finished", at(2), 0, None, Fetches(at(2), 1, 1)), WARNING,
            "ended 2 h ago (finished); nothing is due; 1 of 1 page failed 2 h ago",
        ),
    ],
)  # fmt: skip
def test_last_run_findings(last_run: LastRun | None, status: Status, message: str) -> None:
    finding = doctor_servers.judge_run("shop", last_run, [], NOW)
    assert (finding.status, finding.found) == (status, message)


def test_lease_holders_are_listed() -> None:
    holders = [Holder(f"{n}", f"host{n}", n, "", "", at(1), at(0)) for n in range(5)]
    (first, *_), due = holders, LastRun(at(3), None, None, at(2), 0, None)
    finding = doctor_servers.judge_run("shop", due, [first], NOW)
    assert (finding.status, finding.found) == (
        OK, f"running on host0 (process 0) since {at(1):%Y-%m-%d %H:%M:%S}, "
        f"until {at(0):%Y-%m-%d %H:%M:%S} UTC if not renewed; nothing is due",
    )  # fmt: skip
    several = doctor_servers.judge_run("shop", due, holders, NOW).found
    assert "host2 (process 2)" in several
    assert several.endswith(" and 2 more; nothing is due")


SHOP = Wrapper(name="shop", start_urls=("https://s.example/",), item_pages=("/item",))


def answer(text: str, status: int = 200) -> Answer:
    rules = ProtegoRobotParser(text.encode(), None)
    return Answer("https://s.example/robots.txt", status, rules, "Freshet/1 (+x)")


@pytest.mark.parametrize(
    ("given", "wrapper", "status", "message"),
    [
        (answer(""), SHOP, OK, "s.example returned 200; all start pages are allowed"),
        (answer("<h1>404</h1>", 404), SHOP, OK, "returned 404"),
        (answer("", 503), SHOP, WARNING, "returned 503, so crawls fetch none of its pages"),
        (answer("", 429), SHOP, WARNING, "returned 429, so crawls fetch none of its pages"),
        (answer("", 403), SHOP, WARNING, "returned 403"),
        (answer("User-agent: *\nDisallow: /"), SHOP, WARNING, "disallows https://s.example/"),
        (
            answer("User-agent: *\nDisallow: /\n\nUser-agent: Freshet\nAllow: /"), SHOP, OK,
            "all start pages",
        ),
        (
            answer("User-agent: *\nCrawl-delay: 90"), SHOP, WARNING,
            "asks for a delay of 90 s; crawls wait 30 s",
        ),
        (
            answer("User-agent: *\nCrawl-delay: 10"), SHOP, OK,
            "crawls wait 10 s between requests (Crawl-delay)",
        ),
        (
            answer("User-agent: *\nCrawl-delay: 10"),
            SHOP.model_copy(update={"delay_seconds": 12.0}), OK, "all start pages",
        ),
        (Answer("https://s.example/robots.txt", problem="no"), SHOP, WARNING, "is unreachable"),
    ],
)  # fmt: skip
def test_robots_txt_findings(given: Answer, wrapper: Wrapper, status: Status, message: str) -> None:
    finding = doctor.judge_robots(wrapper, ["https://s.example/"], given, 30.0)
    assert finding.status is status
    assert message in finding.found


def test_duplicate_site_name_is_a_failure(tmp_path: Path) -> None:
    text = 'name = "shop"\nstart_urls = ["https://s.example/"]\nitem_pages = "/item"\n'
    files = [tmp_path / "a.toml", tmp_path / "b.toml"]
    for file in files:
        file.write_text(text)
    settings = Settings({"SPIDER_MODULES": ["spiders"]})
    findings, sites = doctor.check_definitions(
        settings, [str(file) for file in files], StoredSites()
    )
    assert statuses(findings) == [OK, FAILED]
    assert f"name 'shop' is already used by {files[0]}" in findings[1].found
    assert len(sites) == 1


def test_undelivered_notifications_are_warnings() -> None:
    team = outbox.empty_state("team")
    team["waiting"] = 2
    state: NotifyStatus = {"rules": 1, "oldest_event": None, "channels": [team], "problems": []}
    (fine,) = doctor_servers.judge_notifications(state, NOW)
    assert (fine.status, fine.found) == (OK, "1 rule, 1 channel, 2 messages waiting")
    team["dead"], team["reason"] = 3, "HTTP 503"
    state["problems"] = ["rule 'a': channel not found: 'b'"]
    state["oldest_event"] = NOW - timedelta(hours=3)
    found = doctor_servers.judge_notifications(state, NOW)
    assert {finding.status for finding in found} == {WARNING}
    assert [finding.found for finding in found] == [
        "rule 'a': channel not found: 'b'",
        "an event has had no messages for 3 h",
        "3 dead letters of channel team",
        "channel team fails: HTTP 503",
    ]
    nothing: NotifyStatus = {"rules": 0, "oldest_event": None, "channels": [], "problems": []}
    assert doctor_servers.judge_notifications(nothing, NOW) == []
