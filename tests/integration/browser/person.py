"""A person who uses the web app: clicks, types, and is counted."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

# Time limit for crawls and planner jobs, which run in their own processes.
JOB_MILLISECONDS = 90_000
PATIENCE_SECONDS = 300


class Person:
    """Uses a page, and counts clicks and words typed."""

    def __init__(self, page: Page) -> None:
        self.page, self.clicks, self.words = page, 0, 0

    def click(self, place: Locator) -> None:
        self.clicks += 1
        place.click(timeout=JOB_MILLISECONDS)

    def press(self, name: str) -> None:
        self.click(self.page.get_by_role("button", name=name, exact=True).first)

    def follow(self, name: str) -> None:
        self.click(self.page.get_by_role("link", name=name, exact=True).first)

    def open_from_menu(self, name: str) -> None:
        """Open an area that is in the menu."""
        self.click(self.page.get_by_text("More", exact=True))
        self.follow(name)

    def type(self, label: str, text: str) -> None:
        self.words += len(text.split())
        self.page.get_by_label(label, exact=True).fill(text)

    def choose(self, label: str, option: str) -> None:
        self.clicks += 1
        self.page.get_by_label(label, exact=True).select_option(option)

    def upload(self, label: str, path: Path) -> None:
        """Choose a file: the button, the file, and the dialog's own button."""
        self.clicks += 3
        self.page.get_by_label(label, exact=True).set_input_files(path)

    def needed_at_most(self, clicks: int, words: int) -> bool:
        """Return whether neither number is higher; print both, for `pytest -s`."""
        print(f"\n{self.clicks} clicks, {self.words} words")
        return self.clicks <= clicks and self.words <= words


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition that no page shows."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def add_site(person: Person, name: str, url: str, found: str = "") -> None:
    """Add a site from the page with all sites, with the proposals as they are.

    found: what the app says that it found; empty: anything
    """
    page = person.page
    person.click(page.get_by_role("link", name=re.compile("^Add (the first|a) site$")).first)
    person.type("URL of the site", url)
    person.press("Look at the site")
    expect(page.locator(".found")).to_contain_text(found, timeout=JOB_MILLISECONDS)
    person.press("Next: what to watch")
    expect(page.locator("#sample option").first).to_be_attached(timeout=JOB_MILLISECONDS)
    person.press("Next: tell me")
    person.type("Name", name)
    person.press("Start watching")
    expect(page.get_by_role("status")).to_contain_text("for the first time now")


def click_in_frame(page: Page, place: Locator) -> None:
    """Click a place in the script-free page, which is under an overlay."""
    place.scroll_into_view_if_needed(timeout=JOB_MILLISECONDS)
    box = place.bounding_box()
    assert box
    page.mouse.click(box["x"] + 10, box["y"] + box["height"] / 2)
