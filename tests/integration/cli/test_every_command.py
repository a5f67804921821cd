"""Every command line in README and docs works as printed, and every JSON output has a type.

The commands of a page run from top to bottom, as a reader would run them, in a project folder
whose files have the names of the documentation (shop.toml, feeds.opml, ...). Hosts such as
shop.example are replaced by local sites. Commands with `--json` run on the same data.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import re
import shlex
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from scrapy.commands import ScrapyCommand
from scrapy.utils.misc import walk_modules_iter
from scrapy.utils.project import get_project_settings

from crawler.cli.base import ActionsCommand, FreshetCommand, adapter_of, schema_of
from crawler.storage import outbox, users
from crawler.storage.alarms import Silence, record_silences
from crawler.storage.client import Database
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.runs import DeadLetter, add_dead_letter
from crawler.storage.schema import prepare
from crawler.storage.users import Role, Scope
from tests.conftest import Databases
from tests.integration.claiming import edited, text
from tests.integration.feeds.test_feed_crawl import post, rss
from tests.integration.harness import LIMIT_SECONDS, Db, Freshet, Pages, Result, Row
from tests.integration.inside import run
from tests.integration.known_pages import on
from tests.integration.notify.webhooks import serving

pytestmark = pytest.mark.usefixtures("warm")

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
        shop.file("/item/7", "<h1>A toy that is soon gone</h1>")
        for week in range(2):
            write_shop(shop, price=week)
            write_shop(books, price=week)
            for name in ("shop", "books"):
                # The first run of a site without a class stores its definition.
                is_first = name == "shop" and not week
                words = ("site", "-a", "wrapper=shop.toml") if is_first else (name,)
                done(freshet("crawl", *words, hours=168 * (week - 2)))
            if not week:
                shop.remove("/item/7")
        (by_arguments,) = (line for line in in_blocks("README.md") if "name=blog" in line.words)
        done(freshet(*(localized(word, hosts) for word in by_arguments.words)))
        done(inside(freshet, "feeds", "import", folder / "feeds.opml", hours=-160))
        # Less than a week ago, since documented searches go back one week.
        done(freshet("crawl", "feeds", hours=-160))
        done(freshet("crawl", "feeds"))
        for day in (-2, 0):
            write_rates(folder, 1 + day / 100)
            done(freshet("crawl", "cells", "-a", "file=market.toml", hours=24 * day))
        done(inside(freshet, "replan", "--kind", "pages", "--budget", "100/day"))
        names = db.list_collection_names(filter={"type": "collection"})
        yield Seed(hosts, {name: list(db[name].find()) for name in names})


@pytest.fixture
def sandbox(seed: Seed, databases: Databases, tmp_path: Path) -> Iterator[Sandbox]:
    with filled(seed, databases, tmp_path) as made:
        yield made


@contextmanager
def filled(seed: Seed, databases: Databases, folder: Path) -> Iterator[Sandbox]:
    """Yield a project in a folder, with a copy of the seed's database."""
    write_files(folder, seed.hosts)
    with databases() as (db, uri), databases() as (free, _), project(folder, uri) as freshet:
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


def inside(freshet: Freshet, *args: object, **env: Any) -> Result:
    """Run a command in this process, which cannot import the settings of the project folder."""
    return run(freshet, *args, SCRAPY_SETTINGS_MODULE="crawler.settings", **env)


def done(result: Result) -> None:
    assert result.code == 0, result.err + result.out


def write_shop(pages: Pages, price: int) -> None:
    items = [f"/item/{number}" for number in range(1, 7)]
    pages.list("/index.html", ["/category/toys/", "/page"])
    pages.list("/category/toys/index.html", [*items, "/item/7"], "Toys")
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


@pytest.mark.soak
@pytest.mark.parametrize(
    ("document", "lines"), [pytest.param(*each, id=each[0]) for each in lines_to_run()]
)
def test_documented_command_lines_work(sandbox: Sandbox, document: str, lines: list[Line]) -> None:
    for line in lines:
        result = sandbox.run(line)
        assert result.code == 0, f"{document}: {line}\n{result.err}{result.out}"


@pytest.mark.soak
def test_documented_options_and_actions_exist(freshet: Freshet) -> None:
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


# JSON

NOTIFY = """
[[rules]]
name = "all"
channels = "hook"

[channels.hook]
apprise = "json://{}"
"""
TRACE = ["--from", "2024-01-01", "--split", "2024-01-05", "--to", "2024-01-15"]
DEAD = ("https://shop.example/x", "https://shop.example/y", "https://shop.example/z")
JSON_FILES = {
    "texts.jsonl": [json.dumps({"id": n, "text": text(n % 3)}) for n in range(5)],
    "feeds.txt": ["https://a.example/feed", "ftp://b.example/feed"],
    "pages.csv": ["page_id,source_id,until_utc", "p,s,", "q,s,"],
    "changes.csv": [
        "page_id,commit_time_utc",
        *(f"{page},2024-01-{day:02}T00:00:00Z" for day in range(1, 15) for page in "pq"),
    ],
    "posts.csv": [
        "feed_id,posted_at_utc", *(f"f,2024-01-{day:02}T06:00:00Z" for day in range(1, 15)),
    ],
    "feeds.csv": ["feed_id,window_size_S,weight", "f,10,1"],
    "watches.json": ['{"watching": {"a": {"url": "https://a.example/", "proxy": "p"}}}'],
    "mix.toml": ["hours = 2", "[[cells]]", "period = 300"],
}  # fmt: skip
# Arguments after `scrapy`, by the example lines of the commands. Words in braces are replaced.
COMMANDS = {
    "scrapy archive export NAME FILE --json": "archive export shop {folder}/shop.wacz",
    "scrapy archive list --json": "archive list",
    "scrapy archive verify NAME --json": "archive verify shop",
    "scrapy backup FILE --json": "backup {folder}/backup.zip",
    "scrapy cells --json": "cells",
    "scrapy changes --json": "changes",
    "scrapy cron --json": "cron",
    "scrapy cron --systemd --json": "cron --systemd",
    "scrapy db start --json": "db start",
    "scrapy db status --json": "db status",
    "scrapy db stop --json": "db stop",
    "scrapy db uri --json": "db uri",
    "scrapy deadletters drop URL --json": f"deadletters drop {DEAD[0]}",
    "scrapy deadletters list --json": "deadletters list",
    "scrapy deadletters retry URL --json": f"deadletters retry {DEAD[1]}",
    "scrapy doctor --json": "doctor --quick --deep",
    "scrapy duplicates check FILE --json": "duplicates check {folder}/texts.jsonl",
    "scrapy duplicates check FILE --output FILE --json": (
        "duplicates check {folder}/texts.jsonl --output {folder}/flags.jsonl"
    ),
    "scrapy duplicates explain URL_A URL_B --json": (
        "duplicates explain {blog}/2026/01/post-0 {blog}/2026/01/post-3"
    ),
    "scrapy duplicates list --cluster ID --json": "duplicates list --cluster {cluster}",
    "scrapy duplicates list --json": "duplicates list",
    "scrapy duplicates rebuild --json": "duplicates rebuild",
    "scrapy explain URL --json": "explain {shop}/item/1",
    "scrapy export visits FOLDER --json": "export all {folder}/export",
    "scrapy feeds add URL --json": "feeds add https://other.example/feed --no-fetch",
    "scrapy feeds export --json": "feeds export",
    "scrapy feeds export FILE --json": "feeds export {folder}/exported.opml",
    "scrapy feeds import FILE --json": "feeds import {folder}/feeds.txt",
    "scrapy feeds list --json": "feeds list",
    "scrapy feeds push --callback URL --for 3600 --json": (
        "feeds push --callback https://public.example/push --port 0 --for 0.1"
    ),
    "scrapy feeds remove URL --yes --json": "feeds remove {blog}/feed --dry-run",
    "scrapy forget URL --yes --json": "forget {shop}/item/1 --dry-run",
    "scrapy history URL --diff 1 2 --json": "history {shop}/item/1 --diff 1 2",
    "scrapy history URL --json": "history {shop}/item/1",
    "scrapy import FILE --json": "import {folder}/watches.json --dry-run",
    "scrapy learn NAME --json": "learn shop --budget 720/day",
    "scrapy metrics --json": "metrics",
    "scrapy notify dead --json": "notify dead",
    "scrapy notify deliver --json": "notify deliver",
    "scrapy notify preview --json": "notify preview",
    "scrapy notify retry --all --json": "notify retry --all",
    "scrapy notify status --json": "notify status",
    "scrapy notify test CHANNEL --json": "notify test hook",
    "scrapy plan --changes --json": "plan shop --changes",
    "scrapy plan --json": "plan",
    "scrapy prune --keep-versions 10 --json": "prune --keep-versions 10 --dry-run",
    "scrapy refresh run --for 1h --json": "refresh run {folder}/shop.toml --for 0.1s",
    "scrapy replan --json": "replan --dry-run",
    "scrapy reread NAME --json": "reread shop",
    "scrapy restore FILE --json": "restore {folder}/whole.zip --replace --yes",
    "scrapy search WORD --json": "search climate --any --since 30d --all",
    "scrapy silence --json": "silence",
    "scrapy simulate feeds --posts FILE --visits 3x --json": (
        "simulate feeds --posts {folder}/posts.csv --feeds {folder}/feeds.csv --visits 3x"
    ),
    "scrapy simulate overload --json": "simulate overload {folder}/mix.toml",
    "scrapy simulate pages --changes FILE --budget 100 --json": (
        "simulate pages --changes {folder}/changes.csv --budget 9"
    ),
    "scrapy targets --json": "targets",
    "scrapy targets --urls --json": "targets --urls",
    "scrapy targets limits URL --json": "targets limits {shop}/item/2 --min 6h --max 2d",
    "scrapy targets mute URL --json": "targets mute {shop}/item/2",
    "scrapy targets recheck URL --json": "targets recheck {shop}/item/1",
    "scrapy targets unmute URL --json": "targets unmute {shop}/item/2",
    "scrapy web run --json": "web run --port 0",
    "scrapy web token add NAME --json": "web token add anna",
    "scrapy web token list --json": "web token list",
    "scrapy web token revoke ID --json": "web token revoke {token}",
    "scrapy web user add NAME --json": "web user add carla --password-stdin",
    "scrapy web user list --json": "web user list",
    "scrapy web user passwd NAME --json": "web user passwd anna --password-stdin",
    "scrapy web user remove NAME --json": "web user remove berta --yes",
    "scrapy web user role NAME ROLE --json": "web user role anna viewer",
    "scrapy wrapper check FILE URL --json": (
        "wrapper check {folder}/shop.toml {shop}/category/toys/ {shop}/item/1"
    ),
}
# More documents of the same types: feeds, cells, posts of feeds, alternative options.
VARIANTS = {
    "explain {blog}/feed": "scrapy explain URL --json",
    "explain cell:forecast": "scrapy explain URL --json",
    "history {shop}/item/7": "scrapy history URL --json",
    "history {blog}/2026/01/post-1 --source {blog}/feed": "scrapy history URL --json",
    "history cell:forecast": "scrapy history URL --json",
    "history {blog}/feed": "scrapy history URL --json",
    "replan --kind pages --policy adaptive --dry-run": "scrapy replan --json",
    "plan feeds": "scrapy plan --json",
    "search --since 30d": "scrapy search WORD --json",
    "doctor --quick": "scrapy doctor --json",
}
# Commands that run a reactor, and therefore need a process of their own.
OWN_PROCESS = ("feeds push", "refresh run", "wrapper check")


@dataclass(frozen=True)
class Outputs:
    """Run commands with `--json` on the seed's data. words: values of the words in braces."""

    sandbox: Sandbox
    words: dict[str, str]
    mongo: EmbeddedServer

    def of(self, command: str) -> str:
        """Return the output of a command with `--json`."""
        freshet = self.sandbox.freshet
        args = [word.format_map(self.words) for word in command.split()]
        args += TRACE if command.startswith(("simulate pages", "simulate feeds")) else []
        env: dict[str, object] = {}
        if command in ("db start", "db status"):
            env = {"MONGO_URI": "", "FRESHET_DATA_DIR": self.mongo.folder}
        elif command == "db stop":
            env = {"MONGO_URI": "", "FRESHET_DATA_DIR": freshet.folder / "empty"}
        if command.startswith("web run"):
            process = freshet.start(*args, "--json")
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
            process.communicate()
            return line
        if command.startswith(OWN_PROCESS):
            result = freshet(*args, "--json", **env)
        else:
            with patch("sys.stdin", io.StringIO("a long password\n")):
                result = inside(freshet, *args, "--json", **env)
        assert result.code == 0 or command.startswith("doctor"), result.err
        return result.out


@pytest.fixture(scope="module")
def outputs(
    seed: Seed, databases: Databases, mongo: EmbeddedServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Outputs]:  # fmt: skip
    folder = tmp_path_factory.mktemp("json")
    with filled(seed, databases, folder) as sandbox, serving() as hooks:
        for name, lines in JSON_FILES.items():
            (folder / name).write_text("\n".join(lines), encoding="utf-8")
        (folder / "notify.toml").write_text(NOTIFY.format(hooks.place), encoding="utf-8")
        sandbox.crawl_with_archive()
        done(inside(sandbox.freshet, "replan"))
        uri = str(sandbox.freshet.env["MONGO_URI"])
        hosts = {name: seed.hosts[f"{name}.example"] for name in ("shop", "blog")}
        more = {"folder": str(folder), "cluster": sandbox.real("0" * 24)}
        words = hosts | more | {"token": on(uri, add_records)}
        done(inside(sandbox.freshet, "backup", folder / "whole.zip"))
        yield Outputs(sandbox, words, mongo)


async def add_records(db: Database) -> str:
    """Add dead letters, an alarm, and users of the web app with a token; return its id."""
    now = datetime.now(UTC)
    for url in DEAD:
        await add_dead_letter(db, DeadLetter(f"shop {url}", "shop", url, now, 5, "a worker"))
    message = {
        "_id": "msg_dead", "channel": "hook", "rule": "all", "event": "changed",
        "spider": "shop", "target": DEAD[0], "at": now, "data": {},
    }  # fmt: skip
    await outbox.insert(db, [message], now)
    bundle = outbox.Bundle("msg_dead", [message | {"attempts": 0}])
    await outbox.record_failure(db, bundle, "HTTP 404", None, now)
    silent = Silence("shop", DEAD[2], now, now, 0.001, "no change for too long")
    await record_silences(db, ["shop"], [silent], now, {"shop": None})
    for name in ("anna", "berta"):
        await users.add(db, name, Role.EDITOR, "hash", now)
    _, token = await users.add_token(db, "anna", "", [Scope.READ], now, None)
    return str(token["id"])


def commands() -> Iterator[tuple[str, ScrapyCommand]]:
    for module in walk_modules_iter("crawler.cli.commands"):
        kind = getattr(module, "Command", None)
        if kind is not None:
            command: ScrapyCommand = kind()
            command.settings = get_project_settings()
            yield module.__name__.rpartition(".")[2], command


@cache
def json_types() -> dict[str, Any]:
    """Return the types of all JSON outputs, by example line."""
    types: dict[str, Any] = {}
    for _, command in commands():
        if isinstance(command, FreshetCommand):
            types |= command.json_types()
    return types


def test_every_command_with_json_has_a_type_for_each_action() -> None:
    for name, command in commands():
        parser = argparse.ArgumentParser(conflict_handler="resolve")
        command.add_options(parser)
        has_json = "--json" in parser._option_string_actions
        assert has_json == isinstance(command, FreshetCommand), name
        if isinstance(command, FreshetCommand):
            lines = list(command.json_types())
            actions = command.actions if isinstance(command, ActionsCommand) else [""]
            for action in actions:
                begins = [f"scrapy {name} {action}".strip()]
                # The name of the default action may be left out.
                if isinstance(command, ActionsCommand) and action == command.default_action:
                    begins.append(f"scrapy {name} --")
                assert any(line.startswith(tuple(begins)) for line in lines), begins
            assert all(line.startswith(f"scrapy {name} ") for line in lines)
            assert all(line.endswith(" --json") for line in lines)


def test_every_output_is_tested() -> None:
    assert COMMANDS.keys() == json_types().keys()


@pytest.mark.parametrize("line", COMMANDS)
def test_every_field_is_described(line: str) -> None:
    schema = schema_of(json_types()[line])
    documents = [schema, *schema.get("$defs", {}).values()]
    for document in documents:
        for name, field in document.get("properties", {}).items():
            # The description of a document's type is not repeated in a field with the same one.
            assert "description" in field or "$ref" in field, (line, document["title"], name)
    assert any(document.get("properties") for document in documents)


@pytest.mark.parametrize("command", [*COMMANDS.values(), *VARIANTS])
def test_the_output_is_valid(outputs: Outputs, command: str) -> None:
    lines = VARIANTS | {words: line for line, words in COMMANDS.items()}
    adapter = adapter_of(json_types()[lines[command]])
    out = outputs.of(command)
    if command == "duplicates check {folder}/texts.jsonl":
        # One document per line.
        out = ",".join(out.splitlines())
    assert adapter.validate_json(f"[{out}]")[0], "the output is not empty"


def test_an_unknown_or_missing_field_is_invalid(outputs: Outputs) -> None:
    adapter = adapter_of(json_types()["scrapy targets --json"])
    counts = json.loads(outputs.of("targets"))
    assert adapter.validate_json(json.dumps([counts]))
    for changed in (counts | {"more": 1}, counts | {"due": "1"}, {"due": 1}):
        with pytest.raises(ValueError, match="validation error"):
            adapter.validate_json(json.dumps([changed]))
