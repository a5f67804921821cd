"""Options of a sampling phase: an invalid option gives a one-line error before any connection."""

from __future__ import annotations

from argparse import Namespace

import pytest

from crawler.cli.commands.learn import Command

NO_OPTIONS = {"weeks": None, "every": None, "sample": None, "budget": None, "stop": False}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"every": "20"}, "--every: invalid duration: '20'. Examples: 90m, 6h, 2d, 1w"),
        ({"every": "0.5m"}, "--every 30 seconds is out of range. Use one minute to one day"),
        ({"every": "25h"}, "--every 25 hours is out of range. Use one minute to one day"),
        ({"weeks": "53"}, "--weeks 53 is out of range. Use more than 0 and at most 52"),
        ({"weeks": "0"}, "--weeks 0 is out of range. Use more than 0 and at most 52"),
        ({"weeks": "three"}, "--weeks: 'three' is not a number of weeks such as 3"),
        ({"weeks": "nan"}, "--weeks: 'nan' is not a number of weeks such as 3"),
        ({"sample": "0"}, "--sample 0 is too small. Use 1 or more"),
        ({"sample": "few"}, "--sample: 'few' is not a number of pages such as 10"),
        (
            {"budget": "many"},
            "--budget: invalid request rate: 'many'. Use requests a day: 265, 265/day or 0.5",
        ),
        ({"weeks": "3", "stop": True}, "--stop cannot be combined with other options"),
    ],
    ids=str,
)
def test_invalid_options_are_one_line_errors(
    given: dict[str, object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command()
    command.run(["pages"], Namespace(**NO_OPTIONS | given))
    assert (command.exitcode, capsys.readouterr().err) == (1, f"scrapy learn: {message}\n")
