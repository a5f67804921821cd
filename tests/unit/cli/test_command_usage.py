"""Command usage: unknown, missing, and unused arguments are rejected."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from bson import ObjectId
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from crawler.cli.base import check_log_level, print_json, refuse_left_over
from crawler.cli.options import as_time, time_or_age
from crawler.errors import ConfigError
from crawler.utils.terminal import complain


@pytest.mark.parametrize(
    ("args", "arguments"),
    [
        ([], ()),
        (["books"], ("SPIDER",)),
        ([], ("[NAME]",)),
        (["books"], ("[NAME]",)),
        (["books", "u1", "u2", "u3"], ("SPIDER", "URL…")),
        (["books"], ("SPIDER", "[URL…]")),
    ],
    ids=["none", "required", "optional, absent", "optional", "variadic", "variadic and optional"],
)
def test_valid_usage_is_accepted(args: list[str], arguments: tuple[str, ...]) -> None:
    refuse_left_over(args, arguments)


@pytest.mark.parametrize(
    ("args", "arguments", "message"),
    [
        (["--jsn"], ("[NAME]",), "unknown option --jsn"),
        (["books", "-x"], ("SPIDER",), "unknown option -x"),
        ([], ("SPIDER",), "SPIDER is missing"),
        (["books"], ("SPIDER", "URL…"), "URL… is missing"),
        (["books", "more"], ("SPIDER",), "unexpected argument 'more'"),
        (["more"], (), "unexpected argument 'more'"),
    ],
)
def test_usage_error_names_the_argument(
    args: list[str], arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match="^" + message.replace("…", ".")) as caught:
        refuse_left_over(args, arguments)
    assert caught.value.print_help is False


def test_unknown_option_suggests_the_most_similar_one() -> None:
    options = ("--budget", "--dry-run", "-h")
    for arg in ("--budgte", "--budgte=3"):
        with pytest.raises(UsageError, match=rf"^unknown option {arg}. Did you mean --budget\?$"):
            refuse_left_over([arg], (), options)
    with pytest.raises(UsageError, match=r"^unknown option --fast$"):
        refuse_left_over(["--fast"], (), options)


@pytest.mark.parametrize("level", ["FOO", "debug", "10", None])
def test_unknown_log_level_is_rejected(level: str | None) -> None:
    with pytest.raises(ConfigError, match=r"^--loglevel: unknown level .*Use CRITICAL, ERROR, "):
        check_log_level(Settings({"LOG_LEVEL": level}))


@pytest.mark.parametrize("level", ["DEBUG", "WARNING", 10])
def test_log_levels_are_accepted(level: str | int) -> None:
    check_log_level(Settings({"LOG_LEVEL": level}))


def test_error_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    complain("replan", "budget is too low")
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", "scrapy replan: budget is too low\n")


def test_json_has_iso_8601_times_and_string_ids(capsys: pytest.CaptureFixture[str]) -> None:
    noon, some_id = datetime(2024, 5, 1, 12, tzinfo=UTC), ObjectId()
    print_json({"at": noon, "id": some_id, "name": "é", "n": 1})
    out = capsys.readouterr().out
    assert json.loads(out) == {
        "at": "2024-05-01T12:00:00+00:00", "id": str(some_id), "name": "é", "n": 1,
    }  # fmt: skip
    assert "é" in out


@pytest.mark.parametrize("text", ["2024-05-01T12:00", "2024-05-01T14:00+02:00", "36h"])
def test_times_without_an_offset_are_utc(text: str) -> None:
    now = datetime(2024, 5, 3, tzinfo=UTC)
    assert as_time(time_or_age(text), now) == datetime(2024, 5, 1, 12, tzinfo=UTC)
