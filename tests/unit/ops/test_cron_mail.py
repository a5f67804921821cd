"""The end of cron's log is mailed once a day for each error."""

from __future__ import annotations

from pathlib import Path

import pytest

from crawler.ops.cron_mail import FOLDER, MAX_BYTES, new_error

NOW = 1_800_000_000.0
HOUR = 3600.0
DOWN = (
    "2026-11-27 08:{m:02d}:50 [crawler.frontier.session] WARNING: shop: nothing could be read: "
    "{n} failed, for example http://shop.example/item/{m}: 503 Service Unavailable"
)

PAUSED = (
    "2026-11-27 08:{m:02d}:50 [crawler.frontier.summary] WARNING: shop: nothing visited: 1 target "
    "is still due because shop.example is paused until 2026-11-{day} 08:{m:02d} UTC (in {span}); "
    "the exit code is 1 because no page of this site has been read so far"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "cron.log"


def add(log: Path, *lines: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_an_error_that_recurs_every_ten_minutes_is_returned_once_a_day(log: Path) -> None:
    returned = []
    for run in range(24 * 6 * 2):
        add(log, DOWN.format(m=run % 60, n="1 visit" if run % 3 == 0 else f"{run} visits"))
        if new_error(log, NOW + run * HOUR / 6) is not None:
            returned.append(run)
    assert returned == [0, 23 * 6, 46 * 6]
    assert len(list((log.parent / FOLDER).iterdir())) == 1


def test_a_pause_is_returned_once_a_day(log: Path) -> None:
    spans = ("2.5 days", "36.1 h", "40 min", "55 s")
    returned = []
    for run in range(24 * 6):
        add(log, PAUSED.format(m=run % 60, day=10 + run % 20, span=spans[run % 4]))
        if new_error(log, NOW + run * HOUR / 6) is not None:
            returned.append(run)
    assert returned == [0, 23 * 6]


def test_other_errors_and_sites_are_returned(log: Path) -> None:
    for error in ("shop: a", "blog: a", "shop: b"):
        add(log, "an example", error)
        assert new_error(log, NOW) == f"an example\n{error}"
        assert new_error(log, NOW + HOUR) is None


def test_an_error_marked_by_a_clock_that_was_ahead_is_returned(log: Path) -> None:
    add(log, "shop: a")
    assert new_error(log, NOW + 1000 * HOUR) == "shop: a"
    assert new_error(log, NOW) == "shop: a"


def test_a_log_that_is_missing_or_empty_has_no_error(log: Path) -> None:
    assert new_error(log, NOW) is None
    log.touch()
    assert new_error(log, NOW) is None


def test_only_the_end_of_a_long_log_is_read(log: Path) -> None:
    add(log, "a" * MAX_BYTES * 2, "shop: a")
    text = new_error(log, NOW)
    assert text is not None
    assert len(text) <= MAX_BYTES


def test_an_error_is_returned_if_it_cannot_be_marked(log: Path) -> None:
    add(log, "shop: a")
    (log.parent / FOLDER).touch()
    assert new_error(log, NOW) == new_error(log, NOW) == "shop: a"
