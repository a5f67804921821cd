"""Decisions of the service: the next run, pauses between runs, and due periodic jobs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import ClassVar

import pytest
from scrapy import Spider
from scrapy.settings import Settings

from crawler.config import PROJECT, Config
from crawler.errors import ConfigError, StorageError
from crawler.extract.site_definition import Wrapper
from crawler.extract.stored_definition import Definition, read_toml
from crawler.ops.jobs import (
    ANY_SITE,
    Spiders,
    StoredSites,
    classes,
    default_jobs,
    initial_jobs,
    jobs_of,
    needs_database,
)
from crawler.ops.schedule import (
    DUE_SECONDS,
    FIRST_PRUNE_SECONDS,
    MAX_PAUSE_SECONDS,
    PeriodicJob,
    RunEnd,
    ServiceOptions,
    SpiderState,
    add_options,
    command_line_settings,
    decide,
    options_of,
    pause_seconds,
    periodic_jobs,
    unit,
)
from crawler.ops.service import describe_error, run_settings
from crawler.ops.service_report import Report, run_line, summary_lines
from spiders.site import SiteSpider
from spiders.wrapper import Arguments, WrapperSpider

NOW = 1000.0
COUNTS = {
    "name": "shop", "visits": 3, "new": 2, "changed": 1, "gone": 0, "error": 0, "shell": 0,
    "blocked": 0, "posts": 0, "missed_visits": 4, "due": 5,
}  # fmt: skip


def state_of(due: float | None, *, not_before: float = 0, is_running: bool = False) -> SpiderState:
    return SpiderState(due=due, not_before=not_before, read_at=NOW, is_running=is_running)


def test_every_spider_runs_at_startup() -> None:
    begin, _ = decide(NOW, {"a": SpiderState(), "b": SpiderState()}, room=4)
    assert begin == ["a", "b"]
    assert SpiderState().skips_read
    assert not SpiderState().needs_read(NOW), "the database may be empty"


def test_longest_overdue_spiders_run_first_up_to_the_limit() -> None:
    spiders = {
        "late": state_of(NOW - 1), "later": state_of(NOW - 2), "latest": state_of(NOW - 3),
        "running": state_of(NOW - 9, is_running=True),
    }  # fmt: skip
    assert decide(NOW, spiders, room=3)[0] == ["latest", "later"]
    assert decide(NOW, spiders, room=1)[0] == []


def test_waiting_time_starts_after_a_pause() -> None:
    spiders = {"rested": state_of(NOW - 9, not_before=NOW - 1), "due": state_of(NOW - 2)}
    assert decide(NOW, spiders, room=1)[0] == ["due"]


@pytest.mark.parametrize(
    ("spiders", "seconds"),
    [
        ({"a": state_of(NOW + 2), "b": state_of(NOW + 3)}, 2),
        ({"a": state_of(NOW + 900)}, DUE_SECONDS),
        ({"a": state_of(None)}, DUE_SECONDS),
        ({"a": state_of(NOW - 9, not_before=NOW + 1)}, 1),
        ({"a": state_of(None, not_before=NOW + 0.2)}, 0.2),
        ({"a": state_of(NOW - 9, is_running=True)}, DUE_SECONDS),
        ({}, DUE_SECONDS),
    ],
    ids=["first", "far", "none due", "pause", "read after a pause", "running", "no spiders"],
)
def test_sleep_ends_at_the_next_possible_run(
    spiders: dict[str, SpiderState], seconds: float
) -> None:
    begin, sleep = decide(NOW, spiders, room=4)
    assert begin == []
    assert sleep == pytest.approx(seconds)


def test_due_times_are_read_after_a_successful_run() -> None:
    state = state_of(NOW - 9, is_running=True)
    pause = state.ended(RunEnd.SUCCESS, NOW)
    assert not state.is_running
    assert state.ready is None, "all due targets were visited"
    assert not state.needs_read(NOW)
    assert state.needs_read(NOW + pause)
    state.due, state.read_at = NOW + 99, NOW + 1
    assert not state.needs_read(NOW + 2)
    assert state.needs_read(NOW + 1 + DUE_SECONDS), "an import may have made targets due earlier"


@pytest.mark.parametrize("ending", [RunEnd.FAILED, RunEnd.BUSY])
def test_unstarted_run_is_retried_without_reading_due_times(ending: RunEnd) -> None:
    state = state_of(NOW, is_running=True)
    pause = state.ended(ending, NOW)
    assert state.ready == NOW + pause
    assert not state.needs_read(NOW + pause)
    assert state.skips_read


def test_pauses_double_on_failure_and_reset_on_success() -> None:
    state = SpiderState()
    assert [state.ended(RunEnd.FAILED, NOW) for _ in range(8)] == [5, 10, 20, 40, 80, 160, 300, 300]
    assert state.ended(RunEnd.SUCCESS, NOW) == pytest.approx(0.2)
    assert state.ended(RunEnd.FAILED, NOW) == 5
    assert [state.ended(RunEnd.IDLE, NOW) for _ in range(5)] == [30, 60, 120, 240, 300]
    assert [state.ended(RunEnd.BUSY, NOW) for _ in range(3)] == [5, 5, 5]
    assert pause_seconds(RunEnd.IDLE, 10**6) == MAX_PAUSE_SECONDS


def test_replan_is_due_one_interval_after_the_last() -> None:
    replan, prune = periodic_jobs(3600, since_plan=600, now=NOW)
    assert (replan.name, replan.words, replan.next_at) == ("replan", ["replan"], NOW + 3000)
    assert (prune.words, prune.next_at) == (["prune"], NOW + FIRST_PRUNE_SECONDS)
    overdue, _ = periodic_jobs(3600, since_plan=9e9, now=NOW)
    assert overdue.next_at == NOW
    assert [job.name for job in periodic_jobs(0, 0, NOW)] == ["prune"]


def test_failed_job_is_retried_after_an_hour() -> None:
    job = PeriodicJob("replan", ["replan"], 86_400, NOW)
    job.ran(NOW, succeeded=False)
    assert job.next_at == NOW + 3600
    job.ran(NOW, succeeded=True)
    assert job.next_at == NOW + 86_400


def test_periodic_jobs_receive_command_line_settings() -> None:
    settings = Settings({"FRESHET_CONTACT": "settings.py", "BOT_NAME": "x"})
    settings.set("FRESHET_BUDGET", "5", priority="cmdline")
    settings.set("DOWNLOAD_TIMEOUT", "7", priority="cmdline")
    settings.set("LOG_LEVEL", "DEBUG", priority="cmdline")
    words = ["-s", "DOWNLOAD_TIMEOUT=7", "-s", "FRESHET_BUDGET=5"]
    assert command_line_settings(settings) == words


def test_run_settings_do_not_modify_project_settings() -> None:
    settings = Settings({"CLOSESPIDER_TIMEOUT": 20, "EXTENSIONS": {"mine.Own": 1}})
    own = run_settings(settings, 60)
    assert own.getfloat("CLOSESPIDER_TIMEOUT") == 20, "the shorter limit applies"
    assert own.getdict("EXTENSIONS")["mine.Own"] == 1
    assert own.getdict("EXTENSIONS")["crawler.ops.extensions.Garbage"] is None
    assert settings.getdict("EXTENSIONS") == {"mine.Own": 1}
    assert run_settings(Settings(), 60).getfloat("CLOSESPIDER_TIMEOUT") == 60


@pytest.mark.parametrize(
    ("given", "delay_seconds", "expected"),
    [
        ({}, None, 60),
        ({}, 2.0, 60),
        ({}, 30.0, 150),
        ({"DOWNLOAD_DELAY": 30}, None, 150),
        ({"DOWNLOAD_DELAY": 30}, 2.0, 60),
        ({"CLOSESPIDER_TIMEOUT": 90}, 30.0, 90),
    ],
    ids=["none", "short", "long", "of settings.py", "of the site", "limited"],
)
def test_run_has_time_for_a_few_requests(
    given: dict[str, int], delay_seconds: float | None, expected: int
) -> None:
    own = run_settings(Settings(given), 60, delay_seconds)
    assert own.getfloat("CLOSESPIDER_TIMEOUT") == expected


def test_spider_with_a_missing_file_is_skipped(tmp_path: Path) -> None:
    class Filed(WrapperSpider):
        name = "filed"
        place: ClassVar[Path] = tmp_path / "filed.toml"

        @classmethod
        def read_wrapper(cls, arguments: Arguments) -> Wrapper:
            return Wrapper.of(read_toml(cls.place), str(cls.place))

    class Example(Filed):
        name = "example"
        is_example = True

    class Own(Example):
        name = "own"

    spiders: Spiders = {
        "example": Example, "filed": Filed, "other": Spider, "own": Own, ANY_SITE: SiteSpider,
    }  # fmt: skip
    assert classes(spiders) == ["other"]
    assert initial_jobs(spiders) == []
    Filed.place.write_text("broken", encoding="utf-8")
    assert classes(spiders) == ["example", "filed", "other", "own"]
    assert [job.word for job in initial_jobs(spiders)] == ["filed", "own"], (
        "Freshet's spiders, except for the examples"
    )
    with pytest.raises(ConfigError, match="other: not a WrapperSpider"):
        jobs_of(["other"], spiders, StoredSites())


def test_default_jobs_are_the_sites_with_targets() -> None:
    class Shop(WrapperSpider):
        name = "shop"
        start_urls: ClassVar[list[str]] = ["https://s.example/"]
        item_pages = "/item"

    class Idle(Shop):
        name = "idle"

    keys = '{"name": "news", "start_urls": ["https://n.example/"], "item_pages": "/item"}'
    stored = {name: Definition(name, ANY_SITE, keys) for name in ("news", "shop")}
    stored_sites = StoredSites(("lost", "news", "shop"), stored)
    spiders: Spiders = {"idle": Idle, "shop": Shop, ANY_SITE: SiteSpider}
    jobs = default_jobs(spiders, stored_sites)
    assert [job.word for job in jobs.jobs] == ["news", "shop"]
    assert [job.definition for job in jobs.jobs] == [stored["news"], None], (
        "a spider class takes precedence"
    )
    assert (jobs.undefined, jobs.unwatched) == (["lost"], ["idle"])
    assert not needs_database(["shop", "a.toml"], spiders)
    assert needs_database(["news"], spiders)


def parsed_options(*words: str) -> ServiceOptions:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return options_of(Config.load(), parser.parse_intermixed_args(list(words)))


def test_service_options_are_parsed() -> None:
    assert parsed_options() == ServiceOptions([], None, 60, 24)
    given = parsed_options("books", "--spider", "quotes", "books", "--for", "1h", "--slice", "2m")
    assert given == ServiceOptions(["books", "quotes"], 3600, 120, 24)
    assert parsed_options("--replan", "0").replan_hours == 0
    assert parsed_options("--replan", "2d").replan_hours == 48


@pytest.mark.parametrize("words", [("--for", "soon"), ("--slice", "0m"), ("--replan", "-1h")])
def test_invalid_duration_names_its_option(words: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"^{words[0]}: invalid duration: '{words[1]}'"):
        parsed_options("=".join(words))


def test_only_unexpected_errors_include_their_location() -> None:
    def fail() -> None:
        raise ValueError("two\nlines")

    with pytest.raises(ValueError, match="two") as caught:
        fail()
    assert describe_error(caught.value).startswith("ValueError: two lines (")
    assert f"{Path(__file__).name}:" in describe_error(caught.value)
    assert describe_error(StorageError("it is away")) == "it is away"


def test_totals_and_summary_lines() -> None:
    report = Report(["shop.toml", "b"])
    report.add("shop.toml", COUNTS)
    report.add("shop.toml", COUNTS)
    report.failed("b")
    report.periodic_jobs["replan"] += 1
    done = report.totals(12.34)
    shop, b = done["spiders"]
    assert (shop["name"], shop["runs"], shop["visits"], shop["missed"]) == ("shop", 2, 6, 8)
    assert (b["name"], b["runs"], b["failed"]) == ("b", 0, 1)
    assert (done["seconds"], done["replans"], done["prunes"]) == (12.3, 1, 0)
    assert summary_lines(done) == [
        "shop: 2 runs, 6 visits, 4 new, 2 changed, 8 missed",
        "b: 0 runs, 0 visits, 1 failed",
        "1 replan, 0 prunes; 12 s",
    ]
    line = run_line(COUNTS, 0.25)
    assert line == "shop: 3 visits, 2 new, 1 changed, 4 missed, 5 still due; 0.2 s"


def test_unit_does_not_stop_the_embedded_server(tmp_path: Path) -> None:
    text = unit(Config.load(mongo_uri=None, data_dir=Path("/srv/d")), [])
    assert f"\nWorkingDirectory={PROJECT}\n" in text
    assert "\nKillMode=process\n" in text
    assert "\nPrivateTmp=true\n" in text
    assert "@" not in text.replace("SystemCallFilter=@system-service", "")
    deep = Config.load(mongo_uri=None, data_dir=tmp_path / ("d" * 120))
    assert "\nPrivateTmp=false\n" in unit(deep, []), "its socket is in /tmp"
    elsewhere = Config.load(mongo_uri="mongodb://db/freshet", data_dir=deep.data_dir)
    assert "\nKillMode=mixed\n" in unit(elsewhere, [])
    assert "\nPrivateTmp=true\n" in unit(elsewhere, [])


def test_unit_arguments_are_quoted() -> None:
    config = Config.load(mongo_uri=None)
    (line,) = [
        line
        for line in unit(config, ["books", "/a b/50%.toml"]).splitlines()
        if line.startswith("ExecStart=")
    ]
    assert line.endswith(' -m scrapy refresh run -L WARNING books "/a b/50%%.toml"')


@pytest.mark.parametrize(("given", "expected"), [(None, 60), (5, 60), (300, 300)])
def test_service_retries_errors_after_at_least_a_minute(
    given: float | None, expected: float
) -> None:
    own = {} if given is None else {"FRESHET_ERROR_RETRY_SECONDS": given}
    settings = run_settings(Settings(own), slice_seconds=9)
    assert Config.of(settings).error_retry_seconds == expected
