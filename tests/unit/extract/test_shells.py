"""Pages whose content only a browser shows are recognized; others with scripts are not."""

from __future__ import annotations

import pytest
from scrapy.http import HtmlResponse

from crawler.extract.shells import needs_browser

HEAD = "<html><head><title>Shop</title><script src=/app.js></script></head><body>"
TEXT = "<p>" + "A kettle of polished copper with an oak handle. " * 12 + "</p>"


def reason(body: str) -> str | None:
    page = HtmlResponse("https://shop.example/a/", body=body.encode(), encoding="utf-8")
    return needs_browser(page)


@pytest.mark.parametrize(
    "body",
    [
        "<noscript>You need to enable JavaScript to run this app.</noscript><div id=root></div>",
        "<div id=root></div>",
        "<div id=app></div><footer>Imprint</footer>",
        "<app-root></app-root>",
        "<p>Please enable JavaScript to continue using this application.</p>",
        "<p>JavaScript is required</p>",
        "<p>Bitte aktivieren Sie JavaScript in Ihrem Browser.</p><div></div>",
        "<noscript>This site works best with JavaScript enabled</noscript><div class=x></div>",
        "",
        "<div id=app>Loading...</div>",
        "<div class=app><p>Please wait while it loads</p></div>",
        "<noscript><iframe src=//tags.example/></iframe><img src=/pixel></noscript><div></div>",
    ],
)
def test_page_that_scripts_fill_is_recognized(body: str) -> None:
    assert reason(HEAD + body) == "a page that JavaScript fills, which Freshet does not run"


@pytest.mark.parametrize(
    "script",
    [
        'window.location.replace("/b")', "location.href = '/b'", 'document.location="/b"',
        "setTimeout(function(){ top.location.assign('/b') }, 10)", 'self.location = "../b"',
    ],
)  # fmt: skip
def test_redirect_by_script_names_its_target(script: str) -> None:
    shown = reason(f"<html><body><p>One moment</p><script>{script}</script></body></html>")
    assert shown is not None
    assert shown.startswith("a page that only redirects by JavaScript, to https://shop.example/b")


def test_frameset_names_a_frame() -> None:
    shown = reason('<html><frameset cols="20%,80%"><frame src="/nav"><frame src="c"></frameset>')
    assert shown is not None
    assert "frames, such as https://shop.example/a/c. Use the URL" in shown
    shown = reason('<html><body><iframe src="c" width="100%"></iframe></body>')
    assert shown is not None
    assert "frames, such as https://shop.example/a/c. Use the URL" in shown


@pytest.mark.parametrize(
    "body",
    [
        TEXT,
        f"<noscript>Enable JavaScript</noscript><main id=root>{TEXT}</main>",
        "<p>Hello, this is my home page.</p>",
        f"{TEXT}<script>function go() {{ location.href = '/b' }}</script>",
        "<div id=root>Sold out</div>",
        "<p>In stock: 3</p><script>buy.onclick = () => { location.href = '/cart' }</script>",
        "<p>In stock: 3</p><script>function buy() { location.href = '/cart' }</script>",
        "<img src=/today.png>",
        "<p>Loading times of the website were better this week than last week.</p>",
        "<p>A course on how to learn JavaScript</p>",
    ],
)
def test_page_with_content_is_read(body: str) -> None:
    assert reason(HEAD + body) is None


def test_redirect_when_the_page_has_loaded_is_recognized() -> None:
    shown = reason("<html><body onload=\"location.href='/b'\"></body></html>")
    assert shown is not None
    assert "https://shop.example/b" in shown


def test_page_without_scripts_is_only_short() -> None:
    assert reason("<html><body></body></html>") is None
    assert reason("<html><body><p>Enable JavaScript</p></body></html>") is None


def test_hostile_page_takes_linear_time() -> None:
    words = "enable " * 100_000 + "java " * 100_000
    assert reason(f"{HEAD}<p>{words}</p><script>{'location' * 100_000}</script>") is None
