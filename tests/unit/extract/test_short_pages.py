"""Main text of short posts on pages without semantic markup."""

from __future__ import annotations

import pytest

from crawler.extract.main_text import main_text
from tests.unit.pages import page

TITLE = "A lost cat"
POST = "Our grey cat has been missing since Monday. Please call if you have seen her."
ABOUT = "We write about what happens in our village, twice a week, since the winter of 2003."
PARAGRAPH = "The council decided that the old bridge over the river will be repaired next year. "
CARDS = "".join(
    f"<div class='card'><h4><a href='/{n}'>Post {n} of ours</a></h4><p>{ABOUT}</p></div>"
    for n in range(5)
)


def extracted(body: str, title: str = f"{TITLE} | Village") -> str:
    text: str = main_text(page(f"<html><title>{title}</title><body>{body}</body></html>"))[
        "main_text"
    ]
    return text


@pytest.mark.parametrize(
    "post",
    [
        f"<div><h1>{TITLE}</h1><p>{POST}</p></div>",
        f"<div><h2>Village</h2></div><div><h3>A  LOST cat</h3><div>{POST}</div></div>",
        f"<table><tr><td><h1>{TITLE}</h1>{POST}</td></tr></table>",
        f"<div><div><h1>{TITLE}</h1></div><div><p>{POST}</p></div></div>",
        f"<h1>{TITLE}</h1><div class='story-body'><p>{POST}</p></div>",
        f"<h5>News</h5><div id='articleText'><p>{POST}</p></div>",
    ],
    ids=["heading", "title's heading", "cell", "own box", "named by class", "named by id"],
)
def test_short_post_is_extracted_without_teasers(post: str) -> None:
    assert extracted(f"{post}<div>{CARDS}</div><div><p>{ABOUT}</p></div>") == POST


def test_heading_must_equal_a_short_title() -> None:
    other = f"<div><h2>Cats and dogs of our village</h2><p>{ABOUT}</p></div>"
    post = f"<div class='story-body'><h2>Cats</h2><p>{POST}</p></div>"
    assert extracted(other + post, "Cats") == POST


def test_text_next_to_the_post_is_kept() -> None:
    post = (
        f"<div><h1>{TITLE}</h1><p>{POST}</p><p>Thanks</p><p>C<b>a</b>ll<br><a>Anna</a>.</p></div>"
    )
    assert extracted(post + f"<div>{CARDS}</div>") == f"{POST}\nThanks\nCall Anna."


@pytest.mark.parametrize(
    "article",
    [
        f"<div>{f'<p>{PARAGRAPH}</p>' * 8}</div>",
        f"<div>{f'<div><p>{PARAGRAPH}</p></div>' * 8}</div>",
        f"<div>{PARAGRAPH * 8}</div>",
    ],
    ids=["paragraphs", "a div each", "text"],
)
@pytest.mark.parametrize("between", ["", "<h4><a href='/1'>Another post</a></h4>"])
def test_article_outside_the_headings_box_is_kept(article: str, between: str) -> None:
    head = f"<div><h1>{TITLE}</h1><p>{POST}</p></div>"
    assert PARAGRAPH.strip() in extracted(f"<div>{head}{between}{article}</div>")


def test_article_in_an_unclosed_heading_is_kept() -> None:
    article = "".join(f"<p>{n}. {PARAGRAPH}</p>" for n in range(8))
    assert "7. The council" in extracted(
        f"<div><h1>{TITLE}</h1><p>{POST}</p><h2>Standfirst{article}</div>"
    )


def test_all_elements_with_post_classes_are_kept() -> None:
    parts = [f"<div class='post-text'><p>{n}. {POST}</p></div>" for n in range(2)]
    assert all(f"{n}. {POST}" in extracted("".join(parts)) for n in range(2))


@pytest.mark.parametrize("tag", ["div", "a", "h2", "span"])
def test_deep_nesting_does_not_hide_the_post(tag: str) -> None:
    deep = f"<{tag} class='post'>{POST}" * 20_000
    assert POST in extracted(f"<h1>{TITLE}</h1><p>{POST}</p>{deep}")
