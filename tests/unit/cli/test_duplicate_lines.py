"""Input lines of `scrapy duplicates check`: parsing, rejection, and output."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from crawler.cli.duplicates_check import Bad, Line, Lines, parse_line, result_line

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def parsed(**given: object) -> Line | Bad:
    return parse_line(json.dumps({"id": "a", "text": "some text"} | given).encode(), 7)


def test_line_has_an_id_and_a_text() -> None:
    assert parsed() == Line('"a"', "some text")
    assert parsed(text="", title="ignored") == Line('"a"', "")


@pytest.mark.parametrize(
    "id_", ["1", '"1"', "3.50", "-0", "1e400", "12345678901234567890123", '"日本"']
)
def test_id_is_printed_unchanged(id_: str) -> None:
    line = parse_line(f'{{"id": {id_}, "text": "x"}}'.encode(), 1)
    assert isinstance(line, Line)
    assert line.key == id_
    assert result_line(line.key, None, None, None) == (
        f'{{"id": {id_}, "duplicate_of": null, "similarity": null}}\n'
    )


def test_lone_surrogate_keeps_its_json_escape() -> None:
    line = parse_line(rb'{"id": "\ud800", "text": "\udfff"}', 1)
    assert isinstance(line, Line)
    assert (line.key, line.text) == (r'"\ud800"', "\udfff")


def test_result_line_of_a_duplicate() -> None:
    assert json.loads(result_line('"b"', "1", 0.918367, None)) == {
        "id": "b", "duplicate_of": 1, "similarity": 0.9184,
    }  # fmt: skip
    assert json.loads(result_line('"b"', None, None, '"a"'))["replaces"] == "a"


@pytest.mark.parametrize(
    "given",
    [
        "2026-03-02T12:00:00Z", "2026-03-02T12:00", "2026-03-02 13:00+01:00", "20260302T120000",
        " 2026-03-02T12:00:00.000400 ", 1772452800, 1772452800.0004, 1772452800000,
    ],
)  # fmt: skip
def test_created_accepts_iso_8601_and_unix_times(given: object) -> None:
    assert parsed(created=given) == Line('"a"', "some text", NOON)


def test_date_means_midnight_utc_and_null_means_unknown() -> None:
    assert parsed(created="2026-03-02") == Line('"a"', "some text", NOON.replace(hour=0))
    assert parsed(created=None) == parsed()


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"nope", "not valid JSON"),
        (b'{"id": 1, "text": "x"', "not valid JSON"),
        (b'{"id": NaN, "text": "x"}', "not valid JSON"),
        (b"[1]", 'not an object such as {"id": 1, "text": "…"}'),
        (b'{"text": "x"}', "id is missing"),
        (b'{"id": true, "text": "x"}', "id is not a string or number"),
        (b'{"id": 1}', "text is missing"),
        (b'{"id": 1, "text": 5}', "text is not a string"),
        (b'{"id": 1, "text": ["x"]}', "text is not a string"),
        (b"[" * 100_000, "JSON is nested too deeply"),
        ('{"id": 1, "text": "é"}'.encode("latin-1"),
         "not valid UTF-8. Convert it, as with iconv -f latin1 -t utf-8 FILE"),
        (b'{"id": "%s", "text": "x"}' % (b"i" * 1000), "id is longer than 1,000 bytes"),
        (b'{"id": 1, "text": "x", "created": "yesterday"}',
         "created is not an ISO 8601 or Unix time: 'yesterday'"),
        (b'{"id": 1, "text": "x", "created": 1e300}',
         "created is not an ISO 8601 or Unix time: '1e300'"),
        (b'{"id": 1, "text": "x", "created": true}',
         "created is not an ISO 8601 or Unix time: 'True'"),
        (b'{"id": 1, "text": "x", "created": "0001-01-01T00:00+10:00"}',
         "created is not an ISO 8601 or Unix time: '0001-01-01T00:00+10:00'"),
    ],
)  # fmt: skip
def test_invalid_line_reports_the_problem(raw: bytes, problem: str) -> None:
    assert parse_line(raw, 7) == Bad(7, problem)


def parsed_chunks(chunks: list[bytes], max_bytes: int = 1000) -> list[Line | Bad]:
    lines = Lines(max_bytes)
    return [line for chunk in chunks for line in lines.of(chunk)] + list(lines.end())


def test_lines_are_parsed_from_chunks_of_any_size() -> None:
    data = '\ufeff{"id": 1, "text": "é"}\r\n\n  \n{"id": 2, "text": "b"}'.encode()
    expected = [Line("1", "é"), Line("2", "b")]
    for size in (1, 2, 7, 1000):
        assert parsed_chunks([data[at : at + size] for at in range(0, len(data), size)]) == expected
    assert parsed_chunks([data + b"\n"]) == expected


def test_overlong_line_is_skipped_but_counted() -> None:
    long = b'{"id": 1, "text": "' + b"x" * 100
    assert parsed_chunks([b"\n", long, long, b'"}\nno\n'], 150) == [
        Bad(2, "longer than 150 bytes"), Bad(3, "not valid JSON"),
    ]  # fmt: skip
    assert parsed_chunks([long, long], 150) == [Bad(1, "longer than 150 bytes")]
