"""Text charts."""

from __future__ import annotations

from crawler.cli.plan_output import bars, week_chart


def test_bars_grow_with_their_values() -> None:
    assert bars([0, 1, 4, 8]) == " ▁▄█"
    assert bars([0.0, 1e-9, 1.0]) == " ▁█", "nonzero values are visible"
    assert bars([0, 0]) == "  "
    assert bars([]) == ""


def test_week_chart_has_a_row_per_day_with_marks() -> None:
    values = [0.0] * 168
    values[9], values[24 + 10] = 4, 1
    head, monday, tuesday, *rest = week_chart(values, [0, 167])
    assert head.index("6") - head.index("0") == 6
    assert monday == "Mon ●        █" + " " * 14
    assert tuesday == "Tue " + " " * 10 + "░" + " " * 13
    assert [row[:3] for row in rest] == ["Wed", "Thu", "Fri", "Sat", "Sun"]
    assert rest[-1].endswith("●")
    assert {len(row) for row in (monday, tuesday, *rest)} == {28}
