"""Visiting hours in the local week: parsing and formatting."""

from __future__ import annotations

import numpy as np
import pytest

from schedules.calendar import DAYS, describe, open_hours


def written(windows: list[str], blackout: tuple[str, ...] = ()) -> str:
    """Return the open hours of each day, such as `Fri 22-24 Sat 0-6`."""
    week = open_hours(windows, blackout).reshape(7, 24)
    rows = []
    for day, hours in zip(DAYS, week, strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], hours, [0]])))
        rows += [f"{day} {a}-{b}" for a, b in edges.reshape(-1, 2)]
    return " ".join(rows)


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (["Tue 08:00-18:00"], "Tue 8-18"),
        (["Sat,Sun"], "Sat 0-24 Sun 0-24"),
        (["Mon-Wed 09:00-10:00"], "Mon 9-10 Tue 9-10 Wed 9-10"),
        (["Mon-Tue,Fri 09:00-10:00"], "Mon 9-10 Tue 9-10 Fri 9-10"),
        (["Sat-Mon"], "Mon 0-24 Sat 0-24 Sun 0-24"),
        (["Tue-Tue"], "Tue 0-24"),
        (["Tue 00:00-24:00"], "Tue 0-24"),
        (["Tue 22:00-24:00"], "Tue 22-24"),
        (["Tue 22:00-00:00"], "Tue 22-24"),
        (["tuesday,THU 8:00 - 9:00"], "Tue 8-9 Thu 8-9"),
        (["  Tue - Wed , Fri   08:00-09:00 "], "Tue 8-9 Wed 8-9 Fri 8-9"),
        (["Tue 08:00-10:00", "Tue 09:00-12:00"], "Tue 8-12"),
    ],
)
def test_window_may_have_days_hours_or_both(windows: list[str], expected: str) -> None:
    assert written(windows) == expected


def test_hours_without_days_apply_daily() -> None:
    assert written(["08:00-18:00"]) == " ".join(f"{day} 8-18" for day in DAYS)


def test_window_past_midnight_continues_on_next_day() -> None:
    assert written(["Fri 22:00-06:00"]) == "Fri 22-24 Sat 0-6"
    assert written(["Sun 22:00-06:00"]) == "Mon 0-6 Sun 22-24"
    assert written(["22:00-06:00"]) == " ".join(f"{day} 0-6 {day} 22-24" for day in DAYS)


def test_all_hours_except_blackout_are_open_by_default() -> None:
    assert open_hours([]).all()
    assert open_hours([]).shape == (168,)
    assert written(["Mon,Tue"], ("Mon 22:00-06:00", "Tue 12:00-13:00")) == (
        "Mon 0-22 Tue 6-12 Tue 13-24"
    )
    assert (~open_hours([], ["Sat,Sun"])).sum() == 48


@pytest.mark.parametrize(
    ("window", "cause"),
    [
        ("", "invalid window: ''. Use days, hours or both, such as 'Mon-Fri 08:00-18:00'"),
        ("always", "invalid window: 'always'"),
        ("Mon-", "invalid window: 'Mon-'"),
        ("Mon-Wed-Fri", "invalid window: 'Mon-Wed-Fri'"),
        ("Mon 8-18", "invalid window: 'Mon 8-18'"),
        ("Mon 08:00", "invalid window: 'Mon 08:00'"),
        ("Fri 22:00-Mon 06:00", "invalid window: 'Fri 22:00-Mon 06:00'"),
        ("Mondays", "invalid window: 'Mondays'"),
        ("Mon\nTue", r"invalid window: 'Mon\nTue'"),
        ("08:30-18:00", "'08:30-18:00': a window must start and end on the hour (minutes 00)"),
        ("08:00-18:01", "(minutes 00)"),
        ("08:00-25:00", "a window must start at 00:00 to 23:00 and end at 00:00 to 24:00"),
        ("24:00-06:00", "must start at 00:00 to 23:00"),
        (
            "08:00-08:00",
            "'08:00-08:00': start and end are equal. For a whole day, use 00:00-24:00.",
        ),
    ],
)
def test_rejects_invalid_windows_in_one_line(window: str, cause: str) -> None:
    for windows, blackout in ([window], []), ([], [window]):
        with pytest.raises(ValueError, match=r".") as caught:
            open_hours(windows, blackout)
        assert cause in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("windows", "blackout"),
    [(["Mon 08:00-10:00"], ["Mon"]), ([], ["Mon-Sun"]), (["22:00-06:00"], ["20:00-08:00"])],
)
def test_rejects_blackout_that_covers_all_windows(windows: list[str], blackout: list[str]) -> None:
    with pytest.raises(
        ValueError, match="visiting_hours and blackout leave no hour of the week open"
    ):
        open_hours(windows, blackout)


@pytest.mark.parametrize(
    "windows",
    [
        [],
        ["Mon-Fri 08:00-18:00"],
        ["22:00-06:00"],
        ["Mon-Fri 22:00-06:00"],
        ["Sat,Sun"],
        ["Sun 22:00-06:00"],
        ["Mon,Wed 09:00-10:00"],
        ["Mon-Wed,Fri 09:00-10:00", "Tue 12:00-24:00"],
        ["Fri 20:00-24:00", "Sat,Sun", "Mon 00:00-08:00"],
    ],
    ids=str,
)
def test_description_matches_windows(windows: list[str]) -> None:
    assert sorted(describe(open_hours(windows))) == sorted(windows)


def test_description_without_open_hours_is_empty() -> None:
    assert describe(np.zeros(168, bool)) == []
