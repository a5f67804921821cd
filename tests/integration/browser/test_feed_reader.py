"""Somebody who never opens a terminal moves from another feed reader.

After `scrapy web`, all is done in the browser: a list of 60 feeds is uploaded, its posts are read
within two minutes, marked, unmarked, and searched. The clicks and the words typed are counted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.integration.browser.person import Person, until
from tests.integration.harness import Db, Freshet, Pages
from tests.integration.web.served import Served

pytestmark = pytest.mark.soak
N_FEEDS, POSTS_EACH = 60, 4
FOLDERS = ("Astronomy", "Cooking", "Cycling")
MAX_SECONDS = 120
MAX_CLICKS, MAX_WORDS = 25, 2


@pytest.fixture
def publishers() -> Iterator[Pages]:
    """Serve the feeds; each post has words of its own."""
    with Pages() as site:
        for number in range(N_FEEDS):
            site.file(f"/feed{number:02}.xml", rss(site.url, number))
        yield site


def rss(url: str, number: int) -> str:
    """Return a feed with POSTS_EACH posts of the last days."""
    folder = FOLDERS[number % len(FOLDERS)]
    items = "".join(
        f"<item><title>{folder} note {number:02}.{post}</title>"
        f"<link>{url}/{number}/{post}</link><guid>{number}-{post}</guid>"
        f"<pubDate>{published(number, post)}</pubDate><description>{text(number, post)}"
        f"</description></item>"
        for post in range(POSTS_EACH)
    )
    return (
        f'<rss version="2.0"><channel><title>{folder} weekly {number:02}</title>'
        f"<link>{url}/</link><description>x</description>{items}</channel></rss>"
    )


def published(number: int, post: int) -> str:
    return format_datetime(datetime.now(UTC) - timedelta(hours=1 + number + 24 * post))


def text(number: int, post: int) -> str:
    """Return a text that no other post resembles."""
    words = " ".join(f"w{number}x{post}y{word}" for word in range(40))
    return f"Marmalade {words}" if (number, post) == (7, 2) else f"Report {words}"


@pytest.fixture
def opml(publishers: Pages, tmp_path: Path) -> Path:
    """Write the list that another reader exported, with the feeds in folders."""
    outlines = "".join(
        f'<outline text="{folder}">'
        + "".join(
            f'<outline type="rss" text="{folder} weekly {number:02}" '
            f'xmlUrl="{publishers.url}/feed{number:02}.xml"/>'
            for number in range(N_FEEDS)
            if FOLDERS[number % len(FOLDERS)] == folder
        )
        + "</outline>"
        for folder in FOLDERS
    )
    path = tmp_path / "subscriptions.opml"
    path.write_text(f'<opml version="2.0"><body>{outlines}</body></opml>', encoding="utf-8")
    return path


@pytest.fixture
def app(freshet: Freshet, publishers: Pages) -> Iterator[Served]:
    """Serve the web app, which fetches feeds by itself, on an empty database."""
    host = publishers.url.removeprefix("http://")
    served = Served(freshet, service=True, FRESHET_PRIVATE_HOSTS=host)
    yield served
    served.stop()


def test_feeds_of_another_reader_are_read(
    page: Page, app: Served, opml: Path, database: Db
) -> None:
    person = Person(page)
    page.goto(app.url)
    person.follow("Feeds")
    person.follow("Add a feed")
    person.upload("OPML file, or a list of URLs", opml)
    began = time.monotonic()
    person.press("Import")
    expect(page.get_by_role("status")).to_contain_text(f"{N_FEEDS} feeds added")
    person.follow("Read the posts")
    # The page shows the first posts on its own.
    posts = page.locator("[data-post]")
    expect(posts.first).to_be_visible(timeout=1000 * MAX_SECONDS)
    seconds = time.monotonic() - began
    print(f"\n{seconds:.0f} s to the first post")
    assert seconds < MAX_SECONDS
    n_posts = N_FEEDS * POSTS_EACH
    until(lambda: database.posts.count_documents({}) == n_posts, "posts are missing")
    read_a_post(person)
    mark_a_folder_and_undo(person)
    search(person)
    assert person.needed_at_most(MAX_CLICKS, MAX_WORDS)


def read_a_post(person: Person) -> None:
    """Open a post, which is read then, and see that it is no longer listed as unread."""
    page = person.page
    person.follow("Feeds")
    expect(page.get_by_role("heading", level=1)).to_have_text("Unread posts")
    newest = page.locator("[data-open]").first
    title = newest.inner_text()
    person.click(newest)
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
    expect(page.locator(".full .text")).to_contain_text("Report w")
    expect(page.get_by_role("button", name="Mark as unread")).to_be_visible()
    person.follow("Unread")
    expect(page.locator("[data-post]").first).to_be_visible()
    expect(page.get_by_text(title, exact=True)).to_have_count(0)


def mark_a_folder_and_undo(person: Person) -> None:
    """Mark the posts of a folder as read, undo that, and mark everything as read."""
    page = person.page
    person.follow("Cooking")
    expect(page.get_by_role("heading", level=1)).to_have_text("Cooking")
    posts = page.locator("[data-post]")
    n_shown = posts.count()
    assert n_shown > 10
    expect(posts.filter(has_text="Cooking note")).to_have_count(n_shown)
    person.press("Mark all as read")
    expect(page.get_by_role("heading", name="Nothing unread")).to_be_visible()
    person.press("Undo")
    expect(posts).to_have_count(n_shown)
    person.follow("Unread")
    person.press("Mark all as read")
    expect(page.get_by_role("status")).to_contain_text("Marked all posts as read")
    expect(page.get_by_role("heading", name="Nothing unread")).to_be_visible()
    person.follow("All posts")
    expect(posts.first).to_have_class(re.compile("is-read"))


def search(person: Person) -> None:
    """Find a post by a word, although it is read, and open it."""
    page = person.page
    person.follow("Search")
    person.type("Words to find in items and posts", "marmalade")
    person.press("Search")
    hit = page.locator(".hit")
    expect(hit).to_have_count(1)
    expect(hit).to_contain_text("Cooking weekly 07")
    person.click(hit.locator("[data-open]"))
    expect(page.locator(".full .text")).to_contain_text("Marmalade")
