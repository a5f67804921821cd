"""Every command line in README and docs works as printed.

The commands of a page run from top to bottom, as a reader would run them, in a project folder
whose files have the names of the documentation (shop.toml, feeds.opml, ...). Hosts such as
shop.example are replaced by local sites.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crawler.storage.runs import DeadLetter, add_dead_letter
from crawler.storage.schema import prepare
from tests.conftest import Databases
from tests.integration.claiming import edited, text
from tests.integration.feeds.test_feed_crawl import post, rss
from tests.integration.harness import LIMIT_SECONDS, Db, Freshet, Pages, Result, Row
from tests.integration.inside import run
from tests.integration.known_pages import on

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[3]
# A test of its own follows the first tutorial.
DOCUMENTS = ["README.md"] + [
    str(path.relative_to(ROOT))
    for path in sorted(ROOT.glob("docs/**/*.md"))
    if path.name != "first-site.md"
]
# Help texts, whose examples name pages that exist nowhere.
GENERATED = re.compile(r"^<!-- generated: (\w+) -->.*?^<!-- end: \1 -->$", re.M | re.S)
SHELL = {"sh", "bash", "console", "cron", "crontab", "ini"}
PUNCTUATION = "();<>|&"
SYNOPSIS = ("[", "…", "|")
# Time from the moment when a command that keeps running handles SIGTERM until it is terminated.
SERVING_SECONDS = 0.5
SERVING = (
    ("feeds", "push"), ("refresh", "run"), ("notify", "deliver", "--follow"),
    ("web",), ("web", "--host"), ("web", "--root-path"), ("web", "--port"), ("web", "--dashboards"),
)  # fmt: skip
# Commands that write into the source tree, run for minutes, or need a password, a user of the web
# app, a receiver of messages, a dead letter, a cluster or an object store; they have tests of their
# own.
NOT_RUN = (
    ("genspider",), ("simulate", "feeds", "--posts"), ("notify", "test"), ("notify", "retry"),
    ("web", "user"), ("web", "token"), ("web", "--public-url"),
    ("replan", "--engine", "dask://scheduler.example:8786"),
    # A spider of scrapy-redis, as in test_redis_spiders.py.
    ("crawl", "book_urls"),
)  # fmt: skip
SETTINGS = """
from crawler.settings import *

SPIDER_MODULES = ["sites", "spiders.site", "spiders.feeds"]
AUTOTHROTTLE_ENABLED = False
"""
# Words that documented searches must find.
SEARCH_TERMS = "climate harvest virtual world game rain jaguar election mossy heron 虚拟世界"
TEAM_SECRET = "whsec_" + "c2VjcmV0" * 4
IMPORTS = """
from crawler.extract.fields import number, price, text
from spiders.wrapper import WrapperSpider


"""
# Placeholders that the documentation uses for the reader's own values.
PLACEHOLDERS = {
    "URL": "https://shop.example/item/1",
    "URL_A": "https://shop.example/item/1",
    "URL_B": "https://shop.example/item/2",
    "A": "https://shop.example/item/1",
    "B": "https://shop.example/item/2",
    "NAME": "shop",
    "FILE.toml": "shop.toml",
    "wrapper=FILE.toml": "wrapper=shop.toml",
    "NUMBER": "20",
    "N": "20",
    "D": "90",
    "N/day": "500/day",
    "cell:NAME": "cell:forecast",
    "https://shop.example/category/garden/": "https://shop.example/category/toys/",
}


@dataclass(frozen=True)
class Line:
    """Represent a documented command line by the words after `scrapy`."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"scrapy {shlex.join(self.words)}"

    @property
    def is_synopsis(self) -> bool:
        """Return true if the line describes a command with its optional parts."""
        return any(sign in word for word in self.words for sign in SYNOPSIS)

    @property
    def is_name(self) -> bool:
        """Return true if the line only names a command, such as `scrapy feeds add`."""
        return all(re.fullmatch(r"[a-z]+", word) for word in self.words)

    def begins(self, *beginnings: tuple[str, ...]) -> bool:
        """Return true if the line begins with all words of one of these commands."""
        return any(self.words[: len(some)] == some for some in beginnings)


def in_blocks(document: str) -> Iterator[Line]:
    """Find the command lines in a document's code blocks for the shell, cron and systemd."""
    whole = GENERATED.sub("", (ROOT / document).read_text(encoding="utf-8"))
    for block in re.finditer(r"^ *```(\w*)\n(.*?)^ *```", whole, re.M | re.S):
        if block[1] in SHELL:
            for line in block[2].replace("\\\n", " ").splitlines():
                yield from invocations(line)


def in_sentences(document: str) -> Iterator[Line]:
    """Find the command lines in a document's sentences and tables."""
    whole = GENERATED.sub("", (ROOT / document).read_text(encoding="utf-8"))
    prose = re.sub(r"^ *```.*?^ *```", "", whole, flags=re.M | re.S)
    for span in re.findall(r"`(scrapy\s[^`]+)`", prose.replace("\\|", "|")):
        yield from invocations(span)


def invocations(line: str) -> Iterator[Line]:
    """Return the words after each `scrapy` of a line, up to a pipe, a redirection or the end."""
    for inner in re.findall(r"\$\(scrapy ([^)]+)\)", line):
        yield Line(tuple(shlex.split(inner)))
    signs = "" if any(sign in line for sign in SYNOPSIS[:2]) else PUNCTUATION
    words: list[str] | None = None
    lexer = shlex.shlex(line, posix=True, punctuation_chars=signs)
    lexer.whitespace_split = True
    for token in [*lexer, ";"]:
        if words is not None and set(token) <= set(PUNCTUATION):
            yield Line(tuple(words))
            words = None
        elif words is not None:
            words.append(token)
        elif token.removeprefix("ExecStart=").rpartition("/")[2] == "scrapy":
            words = []


class Sandbox:
    """Run the documented commands in a project folder with sites and data."""

    def __init__(self, freshet: Freshet, db: Db, hosts: dict[str, str], free: Db) -> None:
        self.freshet, self.db, self.hosts, self.free = freshet, db, hosts, free

    def run(self, line: Line) -> Result:
        """Run a command line; terminate a command that keeps running once it has started."""
        self.prepare(line)
        words = [self.real(word) for word in line.words]
        env: dict[str, object] = {}
        if line.words == ("crawl", "cells"):
            words += ["-a", "file=cells.toml"]  # the default is the file in the source tree
        if line.begins(("feeds", "add")):
            words[2:] = [self.hosts["blog.example"] + "/"]
        if line.begins(("doctor",)):
            # The doctor checks that the project folder contains the code.
            env["RUN_IN"] = ROOT
            words = [str(self.freshet.folder / w) if w.endswith(".toml") else w for w in words]
        if line.begins(("restore",)) and "--replace" not in words:
            env["MONGO_URI"] = self.real("$(scrapy db uri)")
        if "--worker" in words:
            env["REDIS_URL"] = "redis://127.0.0.1"  # only printed
        if not line.begins(*SERVING):
            return self.freshet(*words, **env)
        if "--port" not in words and not line.begins(("refresh", "run"), ("notify",)):
            words += ["--port", "0"]
        return self.served(words)

    def served(self, words: list[str]) -> Result:
        """Terminate a command that keeps running once it has started, and return its result."""
        process = self.freshet.start(*words)
        deadline = time.monotonic() + LIMIT_SECONDS
        while process.poll() is None and not handles_sigterm(process.pid):
            assert time.monotonic() < deadline, words
            time.sleep(0.02)
        try:
            out, err = process.communicate(timeout=SERVING_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode is not None
        return Result(process.returncode, out, err)

    def prepare(self, line: Line) -> None:
        """Create an empty database, a dead letter or an archive, if a command line requires it."""
        if line.begins(("restore",)):
            self.free.client.drop_database(self.free.name)
        if line.begins(("deadletters", "retry"), ("deadletters", "drop")):
            url = self.real(line.words[-1])
            dead = DeadLetter("shop " + url, "shop", url, datetime.now(UTC), 5, "a worker")
            on(str(self.freshet.env["MONGO_URI"]), lambda db: add_dead_letter(db, dead))
        if line.begins(("archive",), ("reread",)):
            self.crawl_with_archive()

    def crawl_with_archive(self) -> None:
        """Crawl with an archive, unless there is an archive."""
        definition = self.freshet.folder / "shop.toml"
        written = definition.read_text(encoding="utf-8")
        if "archive = true" not in written:
            definition.write_text(f"archive = true\n{written}", encoding="utf-8")
            done(self.freshet("crawl", "site", "-a", "wrapper=shop.toml", hours=168))

    def real(self, word: str) -> str:
        """Replace the documentation's invented values in a word with real ones."""
        if word == "watches/shop-example.toml":
            (path,) = (self.freshet.folder / "watches").glob("*.toml")
            return str(path)
        word = localized(PLACEHOLDERS.get(word, word), self.hosts)
        if word.startswith("mongodb://") or word == "$(scrapy db uri)":
            uri = str(self.freshet.env["MONGO_URI"])
            return uri.replace(self.db.name, self.free.name)
        if re.fullmatch(r"[0-9a-f]{24}", word):
            cluster = self.db.posts.find_one({"duplicate_of": {"$type": "string"}})
            assert cluster is not None, "the posts include a copy"
            return str(cluster["cluster"])
        word = re.sub(r"^/(srv|var/lib)/", f"{self.freshet.folder}/", word)
        return "0" if re.fullmatch(r"\d{4}", word) else word  # a port


def handles_sigterm(pid: int) -> bool:
    """Return true if a process has set a handler for SIGTERM, false also if it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    (caught,) = re.findall(r"^SigCgt:\s+(\w+)", status, re.M)
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@dataclass(frozen=True)
class Seed:
    """Hold running sites, and the contents of a database after they were crawled."""

    hosts: dict[str, str]
    documents: dict[str, list[Row]]


@pytest.fixture(scope="module")
def seed(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seed]:
    folder = tmp_path_factory.mktemp("seed")
    with ExitStack() as stack:
        db, uri = stack.enter_context(databases())
        shop, blog = stack.enter_context(Pages()), stack.enter_context(Pages())
        books = stack.enter_context(Pages())
        hosts = dict.fromkeys(("shop.example", "weather.example"), shop.url)
        hosts |= {"blog.example": blog.url, "books.example": books.url}
        write_files(folder, hosts)
        freshet = stack.enter_context(project(folder, uri))
        write_blog(blog)
        for week in range(3):
            write_shop(shop, price=week)
            write_shop(books, price=week)
            for name in ("shop", "books"):
                # The first run of a site without a class stores its definition.
                is_first = name == "shop" and not week
                words = ("site", "-a", "wrapper=shop.toml") if is_first else (name,)
                done(freshet("crawl", *words, hours=168 * (week - 3)))
        (by_arguments,) = (line for line in in_blocks("README.md") if "name=blog" in line.words)
        done(freshet(*(localized(word, hosts) for word in by_arguments.words)))
        done(freshet("feeds", "import", "feeds.opml", hours=-160))
        # Less than a week ago, since documented searches go back one week.
        done(freshet("crawl", "feeds", hours=-160))
        done(freshet("crawl", "feeds"))
        for day in (-2, 0):
            write_rates(folder, 1 + day / 100)
            done(freshet("crawl", "cells", "-a", "file=market.toml", hours=24 * day))
        done(freshet("replan", "--kind", "pages", "--budget", "100/day"))
        names = db.list_collection_names(filter={"type": "collection"})
        yield Seed(hosts, {name: list(db[name].find()) for name in names})


@pytest.fixture
def sandbox(seed: Seed, databases: Databases, tmp_path: Path) -> Iterator[Sandbox]:
    write_files(tmp_path, seed.hosts)
    with databases() as (db, uri), databases() as (free, _), project(tmp_path, uri) as freshet:
        on(uri, prepare)
        for name, documents in seed.documents.items():
            db[name].delete_many({})
            if documents:
                db[name].insert_many(documents)
        yield Sandbox(freshet, db, seed.hosts, free)


def project(folder: Path, uri: str) -> Freshet:
    return Freshet(
        folder, MONGO_URI=uri, FRESHET_DATA_DIR=folder / "data", RUN_IN=folder, COLUMNS=120,
        FRESHET_DUPLICATES="characters", PYTHONPATH=folder,
        FRESHET_NOTIFY_FILE=folder / "notify.toml", TEAM_SECRET=TEAM_SECRET,
        SCRAPY_SETTINGS_MODULE="project_settings",
    )  # fmt: skip


def done(result: Result) -> None:
    assert result.code == 0, result.err + result.out


def write_shop(pages: Pages, price: int) -> None:
    items = [f"/item/{number}" for number in range(1, 7)]
    pages.list("/index.html", ["/category/toys/", "/page"])
    pages.list("/category/toys/index.html", items, "Toys")
    for number, path in enumerate(items):
        cost = f"<p class=price>{price + number}.50 EUR</p><p class=stock>{number}</p>"
        pages.file(path, f"<h1>Toy {number}</h1>{cost}")
    pages.file("/page", "<p>A page</p>")
    pages.file("/1", "<h1>A watched page</h1>")
    pages.file("/terms", f"<h1>Terms</h1><p>{text(3)}</p>")
    pages.file("/seoul", "<div id=today>Rain</div><p class=now><b class=degrees>21.5</b></p>")


def write_blog(pages: Pages) -> None:
    names = [f"/2026/01/post-{number}" for number in range(4)]
    pages.list("/tag/News/index.html", names)
    texts = [text(0), text(1), text(2), edited(text(0), 2)]
    for path, words in zip(names, texts, strict=True):
        pages.file(path, f"<main><h1>{path}</h1><p>{SEARCH_TERMS} {words}</p></main>")
    links = "".join(f'<a href="{path}">{path}</a>' for path in ["/tag/News/", *names])
    feed = '<link rel="alternate" type="application/rss+xml" href="/feed">'
    pages.file("/index.html", feed + links)
    posts = [post(path, text(9), f"{pages.url}{path}", 24) for path in names]
    pages.file("/feed", rss(*posts))


def write_files(folder: Path, hosts: dict[str, str]) -> None:
    """Write the files that the documents name, with their documented contents if there are any."""
    (folder / "node_exporter/textfile").mkdir(parents=True)
    readme, cells = (
        localized((ROOT / name).read_text(), hosts)
        for name in ("README.md", "docs/how-to/cells.md")
    )
    (folder / "sites").mkdir()
    (code,) = re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S)
    books = code.replace("class Shop", "class Books").replace('"shop"', '"books"')
    books = books.replace(hosts["shop.example"], hosts["books.example"])
    shop_toml, cells_toml = re.findall(r"^```toml\n(.*?)^```", readme, re.M | re.S)
    market_toml = re.findall(r"^```toml\n(.*?)^```", cells, re.M | re.S)[0]
    texts = [{"id": str(number), "text": text(number % 3)} for number in range(5)]
    lines = "".join(json.dumps(row) + "\n" for row in texts)
    guide = (ROOT / "docs/how-to/notifications.md").read_text()
    notify_toml = re.findall(r"^```toml\n(.*?)^```", guide, re.M | re.S)[0]
    watch = {"url": f"{hosts['shop.example']}/1", "include_filters": ["h1"]}
    feed = f"{hosts['blog.example']}/feed"
    files = {
        "project_settings.py": SETTINGS,
        "sites/__init__.py": "",
        "sites/books.py": IMPORTS + books,
        "shop.toml": shop_toml,
        "cells.toml": cells_toml,
        "notify.toml": notify_toml,
        "market.toml": market_toml,
        "feeds.toml": 'name = "feeds"\n',
        "feeds.opml": f'<opml version="2.0"><body><outline xmlUrl="{feed}"/></body></opml>',
        "url-watches.json": json.dumps({"watching": {"1": watch}}),
        "posts.jsonl": lines,
        "texts.jsonl": lines,
        "templates/page.html": "<p>{{ cell('market/forecast').value }}</p>",
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    (folder / "posts.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    write_rates(folder, 1)


def write_rates(folder: Path, rate: float) -> None:
    with closing(sqlite3.connect(folder / "shop.db")) as database, database:
        database.execute("DROP TABLE IF EXISTS rates")
        database.execute("CREATE TABLE rates (currency TEXT, rate REAL, base TEXT)")
        database.execute("INSERT INTO rates VALUES ('CHF', ?, 'EUR')", [rate])


def localized(words: str, hosts: dict[str, str]) -> str:
    """Replace the documentation's hosts in a text with running sites."""
    for host, url in hosts.items():
        words = words.replace(f"https://{host}", url)
    return words.replace(
        "postgresql://reader:${SHOP_PASSWORD}@db.example/shop", "sqlite:///shop.db"
    )


def lines_to_run() -> Iterator[tuple[str, list[Line]]]:
    """Yield the documents with command lines that can be run, and these lines."""
    for document in DOCUMENTS:
        lines = dict.fromkeys([*in_blocks(document), *in_sentences(document)])
        whole = [
            line
            for line in lines
            if not (line.is_synopsis or line.is_name or line.begins(*NOT_RUN))
        ]
        if whole:
            yield document, whole


@pytest.mark.parametrize(
    ("document", "lines"), [pytest.param(*each, id=each[0]) for each in lines_to_run()]
)
def test_documented_command_lines_work(sandbox: Sandbox, document: str, lines: list[Line]) -> None:
    for line in lines:
        result = sandbox.run(line)
        assert result.code == 0, f"{document}: {line}\n{result.err}{result.out}"


def test_documented_options_and_actions_exist(
    freshet: Freshet,
) -> None:
    helps: dict[str, str] = {}
    blocks = [line for document in DOCUMENTS for line in in_blocks(document)]
    sentences = [line for document in DOCUMENTS for line in in_sentences(document)]
    assert min(len(blocks), len(sentences)) > 50
    for line in dict.fromkeys(line for line in blocks + sentences if line.words):
        command, *rest = line.words
        if command not in helps:
            helps[command] = run(freshet, command, "--help").out
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", " ".join(rest)):
            assert option in helps[command], str(line)
        if line.is_name and rest and line in sentences and command != "crawl":
            assert re.search(rf"\b{rest[0]}\b", helps[command]), str(line)
