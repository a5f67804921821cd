"""Parts of texts that do not count as changes."""

from __future__ import annotations

import pytest

from crawler.extract.stable_text import without_unstable


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Last sold 3 minutes ago", "Last sold an hour ago"),
        ("Posted just now by Ann", "Posted 1 hour and 5 minutes ago by Ann"),
        ("5m ago", "2d ago"),
        ("vor 3 Minuten", "vor einer Stunde"),
        ("il y a 2 heures", "il y a 3 jours"),
        ("hace 5 días", "hace una semana"),
        ("2 ore fa", "3 giorni fa"),
        ("5 uur geleden", "2 dagen geleden"),
        ("5 часов назад", "2 дня назад"),
        ("3分钟前", "2小时前"),
        ("1,203 views", "1.3K views"),
        ("Viewed 12 times", "Viewed 13 times"),
        ("Tea\n17 users online\n£2", "Tea\n23 users online\n£2"),
        ("Page generated in 0.031 s", "Page generated in 0.055 s"),
        ("Generated in 0.1 s. 17 queries", "Generated in 0.2 s. 18 queries"),
        ("Today is Friday, 1 May 2026", "Today is Saturday, 2 May 2026"),
    ],
)
def test_relative_times_and_counters_are_left_out(before: str, after: str) -> None:
    assert without_unstable(before) == without_unstable(after)


@pytest.mark.parametrize(
    "text",
    [
        "In stock (22 available)", "£51.77", "3 reviews", "10 days of rain", "Today: 5 offers",
        "A room with 2 views of the sea", "Created in 1985", "5 May 2026", "17 members", "4 hits",
    ],
)  # fmt: skip
def test_other_numbers_count(text: str) -> None:
    assert without_unstable(text) == text
