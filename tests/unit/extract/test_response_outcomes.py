"""Outcomes of responses that are decided before parsing."""

from __future__ import annotations

import codecs
from datetime import UTC, datetime

import pytest
from scrapy import Request
from scrapy.http import HtmlResponse, Response, TextResponse

from crawler.extract.response import (
    HANDLED,
    MAX_VALIDATOR_BYTES,
    decoded,
    fresh_hours,
    moved_to,
    page_problem,
    raw_hash,
    status_outcome,
    validators_of,
)
from crawler.items import Outcome, Validators
from tests.unit.pages import SITE, page

KOREAN = """어제저녁 시내 중심가에서 음악회가 열렸고 수천 명의 관객이 모였다. 연주자들은 가장
유명한 곡들을 연주했으며 관객들은 함께 노래를 불렀다. 다음 공연은 다음 달 부산에서 열릴
예정이다."""
JAPANESE = """昨日の夜、市の中心部でコンサートが開かれ、数千人の観客が集まりました。演奏者たち
は有名な曲を演奏し、観客は一緒に歌いました。次の公演は来月、大阪で行われる予定です。"""
CHINESE = """昨天晚上，市中心举行了一场音乐会，吸引了数千名观众。音乐家们演奏了他们最著名的曲目，
观众们也跟着一起唱。下一场演出将于下个月在上海举行。门票已经可以在网上购买，但所剩不多。"""
RUSSIAN = """Вчера вечером в центре города состоялся концерт, на который пришло несколько тысяч
человек. Музыканты сыграли свои самые известные песни, а публика подпевала."""
FRENCH = """Les ruelles étroites, bordées de maisons en pierre, mènent à la place où se tient
le marché. On y trouve des légumes, du miel, des fromages de chèvre et de la lavande. À
midi, les terrasses des cafés se remplissent. Le musée, installé dans un hôtel
particulier, présente des œuvres de peintres régionaux."""
GERMAN = """Die Universitätsstadt liegt am Neckar. Über die Brücke führt der Weg in die
Altstadt. Jährlich besuchen viele Gäste das Schloss. Die größte Kirche ist die
Stiftskirche; ihre Glasfenster gehören zu den schönsten im Südwesten. Für Fußgänger gibt
es schmale Gassen."""
SPANISH = """El Ayuntamiento de la ciudad anunció ayer que las obras de la plaza comenzarán
después del verano. Según el alcalde, el proyecto incluirá más zonas verdes, bancos y una
fuente. Los técnicos calculan que la construcción terminará en catorce meses. También se
ampliará el número de árboles. ¡Por fin!"""
PORTUGUESE = """A Câmara Municipal informou que a estação ficará fechada até março. Não há
previsão de reabertura antes disso, segundo a administração. Os moradores da região estão
preocupados com a situação do comércio local. A próxima reunião será na terça-feira, às
dez horas, no salão da associação."""
SWEDISH = """På hösten är skogarna runt sjön fulla av svamp och bär. Många åker dit för att
plocka lingon och blåbär. Den gamla gården är öppen för besökare under lördagar och
söndagar. Där säljs våfflor och sylt."""
ENGLISH = """The café’s “new” menu — with crème brûlée — costs £5. We visited yesterday and it
was a pleasure; the naïve waiter brought the bill twice. The building was restored
recently by its owners."""


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((status, None) for status in (200, 201, 203)),
        (304, Outcome.NOT_MODIFIED),
        (206, Outcome.ERROR),
        *((status, Outcome.GONE) for status in (404, 410)),
        *((status, Outcome.BLOCKED) for status in (401, 403, 407, 429, 451)),
        *((status, Outcome.ERROR) for status in (300, 302, 400, 402, 405, 408, 418)),
        *((status, Outcome.ERROR) for status in (500, 502, 503, 504, 522)),
    ],
)
def test_status_determines_the_outcome(status: int, outcome: Outcome | None) -> None:
    decided = status_outcome(Response(SITE, status=status))
    assert (decided and decided[0]) is outcome


def test_503_with_retry_after_is_blocked() -> None:
    response = Response(SITE, status=503, headers={"Retry-After": "5"})
    assert status_outcome(response) == (Outcome.BLOCKED, "status 503")


def test_error_reason_includes_the_status() -> None:
    assert status_outcome(Response(SITE, status=500)) == (Outcome.ERROR, "status 500")


def test_all_statuses_except_redirects_reach_the_spider() -> None:
    assert {200, 304, 404, 429, 500, 599} <= HANDLED
    assert not {301, 302, 303, 307, 308} & HANDLED


@pytest.mark.parametrize("body", [b"", b"  \r\n\t"])
def test_a_page_without_content_is_empty(body: bytes) -> None:
    assert page_problem(page(body)) == "empty page"


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (
            Response(SITE, body=b"GIF89a", headers={"Content-Type": "image/gif"}),
            "not a text page: image/gif",
        ),
        (Response(SITE, body=b"x"), "not a text page: unknown type"),
        (
            TextResponse(SITE, body=b"x", headers={"Content-Type": "application/x-json+sh"}),
            "not a text page: application/x-json+sh",
        ),
        (page(b"<p>\0\1\2</p>"), "not a text page: binary content"),
        (page(b"%PDF-1.7\0"), "not a text page: binary content"),
    ],
)
def test_non_text_page_is_rejected_with_its_type(response: Response, problem: str) -> None:
    assert page_problem(response) == problem


@pytest.mark.parametrize(
    "response",
    [
        page("<p>x</p>"),
        TextResponse(SITE, body=b'{"a": 1}'),
        TextResponse(
            SITE, body=b'{"a": 1}', headers={"Content-Type": "application/Geo+json; charset=utf-8"}
        ),
        TextResponse(SITE, body=b"a", headers={"Content-Type": "Text/Plain"}),
        page("<p>hé</p>".encode("utf-16")),
        page("<p>hé</p>".encode("utf-16-le"), **{"Content-Type": "text/html; charset=utf-16le"}),
        page(codecs.BOM_UTF16_BE + "<p>hé</p>".encode("utf-16-be")),
    ],
    ids=["HTML", "JSON", "GeoJSON", "text", "UTF-16", "UTF-16, declared", "UTF-16, big-endian"],
)
def test_text_page_has_no_problem(response: Response) -> None:
    assert page_problem(response) is None


@pytest.mark.parametrize("times", [1, 4], ids=["short", "long"])
@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("euc-kr", KOREAN),
        ("shift_jis", JAPANESE),
        ("euc-jp", JAPANESE),
        ("gb18030", CHINESE),
        ("windows-1251", RUSSIAN),
        ("koi8-r", RUSSIAN),
        ("windows-1252", FRENCH),
        ("windows-1252", ENGLISH),
        ("latin-1", GERMAN),
        ("latin-1", SPANISH),
        ("latin-1", PORTUGUESE),
        ("latin-1", SWEDISH),
        ("utf-8", KOREAN),
        ("utf-8", FRENCH),
        ("utf-8", ENGLISH),
    ],
    ids=["Korean", "Japanese", "Japanese, EUC", "Chinese", "Russian", "Russian, KOI8", "French",
         "English", "German", "Spanish", "Portuguese", "Swedish", "Korean, UTF-8",
         "French, UTF-8", "English, UTF-8"],
)  # fmt: skip
def test_undeclared_encoding_is_detected(encoding: str, text: str, times: int) -> None:
    body = (
        "<!doctype html><html><head><title>x</title></head><body>"
        f"<nav><a href='/'>Home</a></nav><h1>News</h1>{f'<p>{text}</p>' * times}</body></html>"
    )
    assert decoded(page(body.encode(encoding))).text == body


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (
            HtmlResponse(
                SITE, headers={"Content-Type": "text/html; charset=euc-kr"},
                body="<p>한국</p>".encode("euc-kr"),
            ),
            "<p>한국</p>",
        ),
        (
            page('<meta charset="shift_jis"><p>日本</p>'.encode("shift_jis")),
            '<meta charset="shift_jis"><p>日本</p>',
        ),
        (page("<p>hé</p>".encode("utf-16")), "<p>hé</p>"),
        (page(codecs.BOM_UTF16_BE + "<p>hé</p>".encode("utf-16-be")), "<p>hé</p>"),
        (page(codecs.BOM_UTF8 + "<p>hé</p>".encode()), "<p>hé</p>"),
        (page('<meta charset="nonsense"><p>hé</p>'.encode()), '<meta charset="nonsense"><p>hé</p>'),
        (page('<meta charset="utf-16"><p>hé</p>'.encode()), '<meta charset="utf-16"><p>hé</p>'),
        (
            page(b"<p>tea</p>", **{"Content-Type": "text/html; charset=utf-16"}),
            "<p>tea</p>",
        ),
    ],
    ids=["header", "meta", "UTF-16", "UTF-16, big-endian", "UTF-8 with a BOM", "unknown name",
         "false UTF-16 in meta", "false UTF-16 in header"],
)  # fmt: skip
def test_declared_encoding_is_used(response: HtmlResponse, text: str) -> None:
    assert decoded(response).text == text


def test_character_split_by_the_sample_is_decoded() -> None:
    body = "a" * 65_535 + "é" * 10
    assert decoded(page(body.encode())).text == body


NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


def test_validators_are_stored_unchanged() -> None:
    headers = {"ETag": 'W/"1"', "Last-Modified": "Wed, 01 May 2024 12:00:00 GMT"}
    assert validators_of(Response(SITE, headers=headers), NOW) == Validators(
        'W/"1"', "Wed, 01 May 2024 12:00:00 GMT"
    )
    assert not validators_of(Response(SITE), NOW)


def test_overlong_validators_are_ignored() -> None:
    headers = {"ETag": "e" * MAX_VALIDATOR_BYTES, "Last-Modified": "l" * (MAX_VALIDATOR_BYTES + 1)}
    assert validators_of(Response(SITE, headers=headers), NOW) == Validators(headers["ETag"], None)


def test_raw_hash_covers_every_byte() -> None:
    assert raw_hash(b"a") == raw_hash(b"a")
    assert raw_hash(b"a") != raw_hash(b"a ")
    assert len(raw_hash(b"")) == 32


@pytest.mark.parametrize(
    ("headers", "hours"),
    [
        ({}, None),
        ({"Cache-Control": "public, max-age=7200"}, 2),
        ({"Cache-Control": 'Max-Age = "7200"', "Age": "1800"}, 1.5),
        ({"Cache-Control": "max-age=7200", "Age": "9000"}, 0),
        ({"Cache-Control": "max-age=7200", "Age": "-1800"}, 2),
        ({"Cache-Control": "max-age=7200, no-cache"}, None),
        ({"Cache-Control": "no-store, max-age=7200"}, None),
    ],
    ids=["none", "max-age", "age", "expired", "bad age", "no-cache", "no-store"],
)
def test_freshness_lifetime_is_remaining_max_age(
    headers: dict[str, str], hours: float | None
) -> None:
    assert fresh_hours(Response(SITE, headers=headers)) == hours


@pytest.mark.parametrize(
    ("statuses", "has_moved"),
    [([], False), ([301], True), ([301, 308], True), ([302], False), ([301, 302], False)],
)
def test_a_page_has_moved_if_all_redirects_are_permanent(
    statuses: list[int], has_moved: bool
) -> None:
    request = Request(SITE, meta={"redirect_reasons": statuses} if statuses else None)
    response = Response(f"{SITE}new", request=request)
    assert moved_to(response, response.url) == (response.url if has_moved else None)


@pytest.mark.parametrize(
    ("etag", "last_modified", "expected"),
    [
        ("*", None, Validators(None, None)),
        ('W/"*"', None, Validators('W/"*"', None)),
        ("unquoted", None, Validators("unquoted", None)),
        (None, "Fri, 01 Jan 2100 00:00:00 GMT", Validators(None, None)),
        (
            '"1"', "Mon, 02 Mar 2026 23:00:00 GMT",
            Validators('"1"', "Mon, 02 Mar 2026 23:00:00 GMT"),
        ),
        ('"1"', "Wed, 04 Mar 2026 12:00:00 GMT", Validators('"1"', None)),
        (None, "yesterday", Validators(None, "yesterday")),
        (None, "Fri, 99 Dec 9999 23:59:59 GMT", Validators(None, "Fri, 99 Dec 9999 23:59:59 GMT")),
    ],
)  # fmt: skip
def test_unusable_validators_are_ignored(
    etag: str | None, last_modified: str | None, expected: Validators
) -> None:
    given = {"ETag": etag, "Last-Modified": last_modified}
    headers = {name: value for name, value in given.items() if value is not None}
    assert validators_of(Response(SITE, headers=headers), NOW) == expected


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<p>Mühlstraße</p>".encode("latin-1"), "<p>Mühlstraße</p>"),
        (
            '<meta charset="windows-1250"><p>Łódź</p>'.encode("windows-1250"),
            '<meta charset="windows-1250"><p>Łódź</p>',
        ),
        ("<p>Mühlstraße ".encode() + b"\xff</p>", "<p>Mühlstraße \ufffd</p>"),
    ],
    ids=["Latin-1", "meta", "UTF-8 with an invalid byte"],
)
def test_false_utf_8_of_a_header_is_ignored(body: bytes, text: str) -> None:
    header = {"Content-Type": "text/html; charset=utf-8"}
    assert decoded(HtmlResponse(SITE, body=body, headers=header)).text == text
