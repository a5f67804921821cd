"""Take the screenshots of the web app: `make screenshots` writes docs/pictures/web-*.png.

The script runs the demo in a temporary folder, adds two feeds, and opens the app in the system's
Chromium. All screenshots, in two widths and two color schemes, are in build/screenshots; the docs
use some of them. It takes about three minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from email.utils import format_datetime
from html import escape
from pathlib import Path

from PIL import Image, ImageChops
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.site.demo import BLOG, DATABASE, NOON, SHOP, SOON, WEEK, WEEKS, Demo  # noqa: E402 - see above
from tests.site.running import RunningFolder, RunningSite  # noqa: E402
from tests.site.world import World  # noqa: E402

PICTURES = ROOT / "docs/pictures"
ALL = ROOT / "build/screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HIDDEN = ("FRESHET_", "MONGO_URI", "REDIS_URL", "SCRAPY_")
SIZES = {1280: 860, 390: 844}
SCHEMES = ("light", "dark")
DOCUMENTED = (
    "board-1280-light", "board-1280-dark", "changes-1280-light", "site-1280-light",
    "comparison-1280-light", "budget-1280-light", "setup-1280-light",
)  # fmt: skip
# The app has few colors, so a palette keeps them.
COLORS = 96
# Pixels below the content of a page.
MARGIN = 24
# One channel, and rules about some events of the demo.
NOTIFY = """
[channels.team]
apprise = "json://127.0.0.1:9"

[[rules]]
name = "sold-out"
events = "gone"
channels = "team"

[[rules]]
name = "cheaper"
when = "price falls by 5 %"
channels = "team"
"""
END = NOON + WEEKS * WEEK
JOB_MILLISECONDS = 120_000
COMPUTING_MILLISECONDS = 500
Views = dict[str, Callable[[Page, str], None]]


def main() -> None:
    """Fill a database, and take all screenshots of the app that shows it."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        sys.exit("no browser found. Install the package chromium")
    for name in [name for name in os.environ if name.startswith(HIDDEN)]:
        del os.environ[name]
    ALL.mkdir(parents=True, exist_ok=True)
    # Not below the project: the path of MongoDB's socket has at most 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="shots-") as folder,
        RunningSite() as site,
        feeds() as (feed_site, urls),
    ):
        hosts = (site.url, feed_site.url)
        os.environ |= {
            "FRESHET_DATA_DIR": folder,
            "FRESHET_DATABASE": DATABASE,
            "FRESHET_PRIVATE_HOSTS": ",".join(url.removeprefix("http://") for url in hosts),
            "FRESHET_NOTIFY_FILE": f"{folder}/notify.toml",
        }
        Path(folder, "notify.toml").write_text(NOTIFY)
        try:
            Demo(site, Path(folder)).run()
            move_clock(site, END + SOON)
            for url in urls:
                freshet("feeds", "add", url)
            freshet("crawl", "feeds")
            # The demo visits the blog only once.
            freshet("crawl", BLOG, "-s", "AUTOTHROTTLE_ENABLED=0")
            with app() as url, sync_playwright() as playwright:
                sandbox = os.geteuid() != 0
                browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=sandbox)
                read_old_changes(browser, url)
                take(VIEWS, browser, url, site.url)
                # Nobody listens, so that the channel is shown as failing.
                freshet("notify", "deliver")
                take(CHANNEL_VIEWS, browser, url, site.url)
        finally:
            freshet("db", "stop")
    for name in DOCUMENTED:
        picture = without_empty_end(Image.open(ALL / f"{name}.png").convert("RGB"))
        picture.quantize(COLORS).save(PICTURES / f"web-{name}.png", optimize=True)


def without_empty_end(picture: Image.Image) -> Image.Image:
    """Return a screenshot without the empty part below the content of the page."""
    corner = picture.getpixel((picture.width - 1, picture.height - 1))
    empty = Image.new("RGB", picture.size, corner)
    content = ImageChops.difference(picture, empty).getbbox()
    assert content
    return picture.crop((0, 0, picture.width, min(content[3] + MARGIN, picture.height)))


def freshet(*words: str) -> None:
    """Run a command; its output is shown if it fails."""
    command = [sys.executable, "-m", "scrapy", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"scrapy {' '.join(words)} failed: {done.stderr}")


def move_clock(site: RunningSite, now: datetime) -> None:
    """Set the clocks of the site and of later commands."""
    site.set_clock(now)
    hours = (now - datetime.now(now.tzinfo)) / timedelta(hours=1)
    os.environ["FRESHET_CLOCK_OFFSET_HOURS"] = str(hours)


@contextmanager
def app() -> Iterator[str]:
    """Serve the web app, and yield its URL."""
    command = [sys.executable, "-m", "scrapy", "web", "--port", "0", "--no-service", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


@contextmanager
def feeds() -> Iterator[tuple[RunningFolder, list[str]]]:
    """Serve the posts of the demo's blog as a feed, and another feed that reposts some of them."""
    posts = [post for post in World().posts if post.published <= END][:24]
    own, reposts = [], []
    for number, post in enumerate(posts):
        paragraphs = post.body(END)
        own.append(entry(post.title, post.path, post.published, paragraphs))
        if number % 4 == 1:
            edited = [*paragraphs[:-1], f"{paragraphs[-1]} First seen on Millrace."]
            later = post.published + timedelta(hours=3)
            reposts.append(entry(f"{post.title} (repost)", f"/wire/{number}", later, edited))
    with tempfile.TemporaryDirectory(prefix="feeds-") as name:
        folder = Path(name)
        for title, entries in (("Millrace", own), ("Garden Wire", reposts)):
            head = f"<title>{title}</title><link>https://{title.split()[0].lower()}.example/</link>"
            path = folder / f"{title.split()[0].lower()}.xml"
            path.write_text(
                f'<rss version="2.0"><channel>{head}<description>Notes</description>'
                f"{''.join(entries)}</channel></rss>"
            )
        with RunningFolder({"127.0.0.1": folder}) as site:
            yield site, [f"{site.url}/{path.name}" for path in sorted(folder.iterdir())]


def entry(title: str, path: str, published: datetime, paragraphs: list[str]) -> str:
    """Return a post as an item of RSS."""
    text = escape("".join(f"<p>{paragraph}</p>" for paragraph in paragraphs))
    return (
        f"<item><title>{title}</title><link>https://millrace.example{path}</link>"
        f"<guid>{path}</guid><pubDate>{format_datetime(published)}</pubDate>"
        f"<description>{text}</description></item>"
    )


def read_old_changes(browser: Browser, url: str) -> None:
    """Mark the changes before the last three days as read; all earlier pages are new."""
    page = browser.new_page(base_url=url)
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("/changes/settings")
    page.get_by_label("Unread since (UTC)").fill(f"{END - timedelta(days=3):%Y-%m-%dT%H:%M}")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_role("heading", name="Changes", exact=True).wait_for()
    page.close()


def take(views: Views, browser: Browser, url: str, site_url: str) -> None:
    """Take screenshots of views, in all widths and color schemes."""
    for width, height in SIZES.items():
        for scheme in SCHEMES:
            context = browser.new_context(
                base_url=url, color_scheme=scheme, viewport={"width": width, "height": height},
                locale="en-US", timezone_id="UTC", reduced_motion="reduce",
            )  # fmt: skip
            context.set_default_timeout(JOB_MILLISECONDS)
            page = context.new_page()
            for name, show in views.items():
                show(page, site_url)
                page.wait_for_load_state("load")
                wide = page.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    print(f"{name}-{width}: the page is {wide} pixels wide")
                page.screenshot(path=ALL / f"{name}-{width}-{scheme}.png")
                page.screenshot(path=ALL / f"{name}-{width}-{scheme}-full.png", full_page=True)
            context.close()


def path_view(path: str) -> Callable[[Page, str], None]:
    """Return a function that opens a page."""

    def show(page: Page, _: str) -> None:
        page.goto(path)
        # Numbers of the first visit are computed in the background.
        while page.locator("[data-computing]").count():
            page.wait_for_timeout(COMPUTING_MILLISECONDS)
            page.reload()

    return show


def show_target(page: Page, _: str, site: str = SHOP) -> None:
    """Open the page that changed last."""
    page.goto(f"/changes?site={site}&kind=changed&q=.html")
    page.locator("[data-open]").first.click()
    item = page.locator(".change-where .outside").first.inner_text()
    page.goto("/targets")
    page.get_by_label("Find a target by its URL").fill(item)
    page.keyboard.press("Enter")
    page.locator("#explanation dl, #explanation table").first.wait_for(state="attached")


def show_comparison(page: Page, site_url: str) -> None:
    """Compare the two newest versions of a post."""
    show_target(page, site_url, BLOG)
    page.get_by_role("button", name="Compare versions").click()
    page.locator(".sides").first.wait_for()


def show_duplicate(page: Page, _: str) -> None:
    """Open the first cluster."""
    page.goto("/duplicates")
    page.locator("main table a, main ol a").first.click()


def show_budget(page: Page, _: str) -> None:
    """Wait for the curve."""
    page.goto("/budget")
    page.locator("#chart canvas").wait_for()


def show_setup(page: Page, site_url: str) -> None:
    """Add the shop, up to its fields."""
    page.goto("/setup")
    page.get_by_label("URL of the site").fill(f"{site_url}/")
    page.get_by_role("button", name="Look at the site").click()
    # The shop of the demo is wanted, instead of the blog.
    for kind, part in (
        ("item_pages", "/shop/[^/]+/[^/]+"), ("item_pages", r"/blog/\\d"),
        ("list_pages", "/shop/[^/]+(?:"), ("list_pages", "/blog/[^/]+/[^/]+(?:"),
        ("list_pages", "/blog(?:"),
    ):  # fmt: skip
        page.locator(f'[data-use="{kind}"][data-pattern*="{part}"]').first.click()
    page.get_by_role("button", name="Next: what to watch").click()
    page.locator("#sample option").nth(2).wait_for(state="attached")
    for name in ("title", "price", "stock"):
        page.get_by_role("button", name=f"Add {name}").click()
        page.get_by_role("region", name="Preview").get_by_role("columnheader", name=name).wait_for()
    page.locator("#steps").evaluate("each => each.scrollIntoView()")


VIEWS: Views = {
    "board": path_view("/"),
    "site": path_view(f"/sites/{SHOP}"),
    "changes": path_view("/changes?kind=changed"),
    "target": show_target,
    "comparison": show_comparison,
    "budget": show_budget,
    "feeds": path_view("/feeds"),
    "feeds-health": path_view("/feeds/health"),
    "duplicates": path_view("/duplicates"),
    "duplicate": show_duplicate,
    "setup": show_setup,
    "notifications": path_view("/notifications"),
    "notification-rule": path_view("/notifications/rule"),
    "notification-preview": path_view("/notifications/preview?events=new&events=changed"),
}
CHANNEL_VIEWS: Views = {
    "notification-channel": path_view("/notifications/channel?name=team&state=waiting"),
}


if __name__ == "__main__":
    main()
