"""Shapes of URLs, which summarize many links in a few lines."""

from __future__ import annotations

import random
import time

import pytest

from crawler.utils.urls import Shape, shapes

SITE = "https://shop.example"
WORDS = ("love", "life", "tea", "books", "humor")


def texts(*paths: str) -> dict[str, int]:
    """Return the shapes of these paths of one site, with their counts."""
    return {shape.text: shape.count for shape in shapes(SITE + path for path in paths)}


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([f"/tag/{word}/" for word in WORDS], {"/tag/{word}/": 5}),
        ([f"/page/{n}" for n in (1, 22)], {"/page/{number}": 2}),
        ([f"/2024/0{n}/post-{n}.html" for n in (1, 2)],
         {"/{number}/{number}/post-{number}.html": 2}),
        ([f"/{word}.html" for word in WORDS], {"/{word}.html": 5}),
        ([f"/c/{word}_{n}/index.html" for n, word in enumerate(WORDS)],
         {"/c/{word}_{number}/index.html": 5}),
        ([f"/c/item-{word}-x" for word in WORDS], {"/c/item-{word}-x": 5}),
        ([f"/?page={n}&q={word}" for n, word in enumerate(WORDS)], {"/?page={number}&q={word}": 5}),
        (["/about", "/login"], {"/about": 1, "/login": 1}),
        (["/about", "/about/", "/", "/about.php"],
         {"/about": 1, "/about/": 1, "/": 1, "/about.php": 1}),
        ([f"/tag/{word}" for word in WORDS] + [f"/by/{word}" for word in WORDS],
         {"/tag/{word}": 5, "/by/{word}": 5}),
        ([f"/by/{word}/page/{n}" for word in WORDS for n in range(2)],
         {f"/by/{word}/page/{{number}}": 2 for word in WORDS}),
        ([f"/{n}{'x' * n}/p" for n in range(9)], {"/{word}/p": 9}),
        ([f"/a{'/b' * 30}"], {f"/a{'/b' * 7}/{{…}}": 1}),
        ([], {}),
    ],
    ids=[
        "words", "numbers", "numbers in words", "extension", "common end", "common start and end",
        "query", "two words stay", "ends differ", "two places", "few that repeat", "many siblings",
        "long path", "none",
    ],
)  # fmt: skip
def test_links_with_different_words_and_numbers_share_a_shape(
    paths: list[str], expected: dict[str, int]
) -> None:
    assert texts(*paths) == expected


def test_most_frequent_shape_is_first() -> None:
    result = shapes([f"{SITE}/about", *(f"{SITE}/tag/{word}" for word in WORDS)])
    assert result[0] == Shape("/tag/{word}", 5, f"{SITE}/tag/love")


def test_shapes_of_several_hosts_include_host() -> None:
    result = shapes([f"{SITE}/a", "https://b.example/a"])
    assert {shape.text for shape in result} == {"shop.example/a", "b.example/a"}


def test_invalid_url_is_skipped() -> None:
    assert shapes(["https://[x/"]) == []


def test_takes_linear_time_for_any_urls() -> None:
    chance = random.Random(1)
    characters = "aaaaab-/-/./0?&={}"
    urls = [f"{SITE}/{''.join(chance.choices(characters, k=2000))}" for _ in range(2000)]
    urls += [f"{SITE}/{'a-' * 900}{n}b{'-a' * 90}" for n in range(2000)]
    began = time.process_time()
    result = shapes(urls)
    assert time.process_time() - began < 5
    assert sum(shape.count for shape in result) == len(urls)
