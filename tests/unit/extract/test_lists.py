"""Lists, tables and definition lists of a page are in its main text, in each kind of container."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from crawler.extract.main_text import main_text
from crawler.extract.noise import lines_of
from tests.unit.pages import page

INTRODUCTION = (
    "Did the council agree to that? These are the points from the minutes of the meeting."
)
CLOSING = "The mayor also asked the engineers to repeat the trial before the end of the year."
ITEMS = [
    "The pump was late by nine days", "The valve was wrong", "The mill burned down", "Pump 7",
    "A new board was elected", "9 of 12 members were present",
]  # fmt: skip
AROUND = {
    "before": "<header><a href=/>Town</a></header><nav><ul><li><a href=/a>News</a></li>"
    "<li><a href=/b>Offices</a></li></ul></nav>",
    "after": "<aside><ul><li>Weather: rain</li></ul></aside><div class=related-posts><ul><li>"
    "Older minutes</li></ul></div><footer><ul><li>Imprint</li><li>Contact</li></ul></footer>",
}
BESIDE = ["News", "Offices", "Weather", "Older minutes", "Imprint", "Contact"]
CONTAINERS = {
    "body": "{}", "div": "<div>{}</div>", "section": "<section>{}</section>",
    "main": "<main>{}</main>", "article": "<article>{}</article>",
    "entry-content": "<div class=entry-content>{}</div>", "id": "<div id=content>{}</div>",
    "layout": "<table><tr><td>{}</td></tr></table>",
}  # fmt: skip
PAIRS = list(zip(ITEMS[::2], ITEMS[1::2], strict=True))


def repeated(template: str, values: Sequence[object]) -> str:
    return "".join(template.format(*value) if isinstance(value, tuple) else template.format(value)
                   for value in values)  # fmt: skip


LISTS = {
    "ul": f"<ul>{repeated('<li>{}</li>', ITEMS)}</ul>",
    "ol": f"<div class=box><ol>{repeated('<li><p>{}</p></li>', ITEMS)}</ol></div>",
    "dl": f"<dl>{repeated('<dt>{}</dt><dd>{}</dd>', PAIRS)}</dl>",
    "table": f"<table>{repeated('<tr><th>{}</th><td>{}</td></tr>', PAIRS)}</table>",
    "links": f"<ul>{repeated('<li><a href=/x>{}</a></li>', ITEMS)}</ul>",
}
PAGES = list(product(CONTAINERS, LISTS))


def listed(container: str, kind: str, words: str = "{}", items: str | None = None) -> str | None:
    """Return the main text of a page with a list."""
    content = "<h1>Minutes</h1>" + words.format(LISTS[kind] if items is None else items)
    body = AROUND["before"] + CONTAINERS[container].format(content) + AROUND["after"]
    text: str | None = main_text(
        page(f"<html><head><title>Minutes</title></head><body>{body}</body>")
    )["main_text"]
    return text


PARAGRAPHS = [f"<p>{INTRODUCTION}</p>{{}}<p>{CLOSING}</p>", "{}", f"<p>{INTRODUCTION}</p>{{}}"]


@pytest.mark.parametrize(("container", "kind"), PAGES)
@pytest.mark.parametrize("words", PARAGRAPHS, ids=["between", "alone", "at the end"])
def test_all_items_of_a_list_are_main_text(container: str, kind: str, words: str) -> None:
    text = listed(container, kind, words) or ""
    assert [item for item in ITEMS if item not in text] == []
    positions = [text.index(item) for item in ITEMS]
    assert positions == sorted(positions), "in the order of the page"
    assert [other for other in BESIDE if other in text] == []


@pytest.mark.parametrize(("container", "kind"), PAGES)
def test_all_items_of_a_list_in_a_long_article_are_main_text(container: str, kind: str) -> None:
    prose = f"<p>{INTRODUCTION} {CLOSING}</p>" * 8
    text = listed(container, kind, f"{prose}{{}}{prose}") or ""
    assert [item for item in ITEMS if item not in text] == []
    assert [other for other in BESIDE if other in text] == []


@pytest.mark.parametrize("kind", LISTS)
def test_an_edit_of_one_item_changes_one_line(kind: str) -> None:
    before = listed("body", kind, PARAGRAPHS[0])
    edited = LISTS[kind].replace("The valve was wrong", "The valve was right")
    after = listed("body", kind, PARAGRAPHS[0], edited)
    lines = [set(lines_of({"main_text": text})) for text in (before, after)]
    assert len(lines[0] - lines[1]) == len(lines[1] - lines[0]) == 1


def test_links_after_an_article_are_not_main_text() -> None:
    prose = f"<p>{INTRODUCTION} {CLOSING}</p>" * 8
    text = listed("div", "links", f"{prose}{{}}") or ""
    assert [item for item in ITEMS if item in text] == []


def test_list_in_an_unclosed_paragraph_is_main_text() -> None:
    items = "".join(f"<li>{item}" for item in ITEMS)
    text = main_text(page(f"<body><p>{INTRODUCTION}<ul>{items}</ul><p>{CLOSING}"))["main_text"]
    assert text.split("\n") == [INTRODUCTION, *(f"- {item}" for item in ITEMS), CLOSING]


def test_rows_of_a_table_are_lines_and_preformatted_text_keeps_its_lines() -> None:
    table = "<table><tr><th>Pump</th><th>Days</th></tr><tr><td>North</td><td>9</td></tr></table>"
    code = "<pre>pump:\n    on: 9\n</pre>"
    text = main_text(page(f"<body><p>{INTRODUCTION}</p>{table}{code}"))["main_text"]
    assert text.split("\n") == [INTRODUCTION, "Pump | Days", "North | 9", "pump:", "    on: 9"]


def test_nested_lists_are_main_text() -> None:
    nested = "<ul><li>Pumps<ul><li>North</li><li>South<ol><li>Old</li></ol></li></ul></li></ul>"
    text = main_text(page(f"<body><p>{INTRODUCTION}</p>{nested}"))["main_text"]
    assert text.split("\n")[1:] == ["- Pumps", "- North", "- South", "- Old"]


def test_names_of_parts_count_only_next_to_a_long_text() -> None:
    box = "<div class=author-box><p>Ann Lee writes about towns and rivers for this paper.</p></div>"
    article = f"<h1>Minutes</h1>{f'<p>{INTRODUCTION} {CLOSING}</p>' * 8}"
    assert "Ann Lee" not in main_text(page(f"<body>{article}{box}"))["main_text"]
    assert "Ann Lee" in main_text(page(f"<body><h1>Ann Lee</h1>{box}"))["main_text"]
