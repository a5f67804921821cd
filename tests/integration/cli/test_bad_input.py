"""Bad input: one line on stderr that names the cause, an exit code, and no writes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.harness import ROOT, Db, Freshet
from tests.integration.second_mongod import second_mongod

pytestmark = pytest.mark.empty_database
GOOD = 'name = "shop"\nstart_urls = ["http://127.0.0.1:1/"]\nitem_pages = "/item/"\n'
FILES = {
    "good.toml": GOOD,
    "syntax.toml": "name = shop\n",
    "ahead.toml": GOOD.replace('"/item/"', '"/item/(?!x)"'),
    "regex.toml": GOOD + 'list_pages = "/list/(\\\\d+"\n',
    "key.toml": GOOD + 'feilds = "h1"\n',
    "zone.toml": GOOD + 'timezone = "Europe/Londinium"\n',
    "selector.toml": GOOD + 'fields = { title = "h1[" }\n',
    "empty.toml": "",
    "secret.toml": GOOD + 'cookies = { session = "abc" }\n',
    "latin.toml": GOOD + "# caf\udce9\n",
    "escape.toml": GOOD.replace('"/item/"', r'"/item/\d+"'),
    "quotes.toml": GOOD.replace('"shop"', "\u201cshop\u201d"),
    "below.toml": 'name = "shop"\n[fields]\ntitle = "h1"\nstart_urls = ["http://127.0.0.1:1/"]\n',
    "name.toml": GOOD.replace('"shop"', '"my shop"'),
    "taken.toml": GOOD.replace('"shop"', '"books"'),
}
# Command line, words that the error must contain.
INPUT = {
    "unknown spider": ("crawl nosuch", ["nosuch", "books, cells, feeds, quotes, site"]),
    "file as spider": ("crawl shop.toml", ["scrapy crawl site -a wrapper=shop.toml"]),
    "unknown argument": (
        "crawl books -a colour=red",
        ["colour", "unknown key. Available: full, limit"],
    ),
    "misspelled argument": ("crawl books -a limitt=1", ["unknown key. Did you mean limit?"]),
    "misspelled setting": (
        "crawl books -s FRESHET_BUDGTE=1",
        ["not a Freshet setting. Did you mean FRESHET_BUDGET?"],
    ),
    "bad limit": ("crawl books -a limit=many", ["limit"]),
    "limit of zero": ("crawl books -a limit=0", ["limit"]),
    "no wrapper": ("crawl site", ["name", "wrapper=FILE.toml"]),
    "invalid TOML": ("crawl site -a wrapper={}/syntax.toml", ["syntax.toml", "line 1"]),
    "not UTF-8": ("crawl site -a wrapper={}/latin.toml", ["latin.toml", "Save the file as UTF-8"]),
    "escaped pattern": (
        "crawl site -a wrapper={}/escape.toml",
        ["escape.toml", "at line 3", r"Write patterns in single quotes: '/item/\d+'"],
    ),
    "curly quotes": (
        "crawl site -a wrapper={}/quotes.toml",
        ["at line 1", "Write text in straight quotes"],
    ),
    "key below a table": (
        "crawl site -a wrapper={}/below.toml",
        ["start_urls: is missing. It is below [fields]; move it above the first line in brackets"],
    ),
    "name with a space": (
        "crawl site -a wrapper={}/name.toml",
        ["name: invalid: 'my shop'. Use letters, digits"],
    ),
    "name of a class": (
        "crawl site -a wrapper={}/taken.toml",
        ["'books' is taken by a spider class"],
    ),
    "empty file": ("crawl site -a wrapper={}/empty.toml", ["empty.toml", "is missing"]),
    "bad regex": ("crawl site -a wrapper={}/regex.toml", ["regex.toml", "list_pages"]),
    "look-ahead": (
        "crawl site -a wrapper={}/ahead.toml",
        ["ahead.toml", "item_pages", "look-ahead is not supported", "use not_list_pages or"],
    ),
    "unknown key": (
        "crawl site -a wrapper={}/key.toml",
        ["key.toml", "feilds: unknown key. Did you mean fields?"],
    ),
    "bad zone": ("crawl site -a wrapper={}/zone.toml", ["zone.toml", "timezone", "Londinium"]),
    "bad selector": ("crawl site -a wrapper={}/selector.toml", ["selector.toml", "title", "h1["]),
    "secret in file": ("crawl site -a wrapper={}/secret.toml", ["cookies", "environment"]),
    "missing file": ("crawl site -a wrapper={}/none.toml", ["none.toml", "No such file"]),
    "a folder": ("crawl site -a wrapper={}", ["directory"]),
    "file and name": ("crawl site -a wrapper={}/good.toml -a name=x", ["cannot be combined"]),
    "bad setting by -s": ("crawl books -s FRESHET_COMMIT_SIZE=abc", ["FRESHET_COMMIT_SIZE"]),
    "nothing to forget": ("forget nosuch --yes", ["nosuch"]),
    "unwatched page": ("history http://a.test/", ["http://a.test/", "URL not found"]),
    "no targets": ("targets nosuch", ["nosuch"]),
    "negative keep-versions": ("prune --keep-versions -1", ["--keep-versions", "negative"]),
    "changes in the future": (
        "changes --since 2100-01-01",
        ["--since: 2100-01-01 00:00 UTC is in"],
    ),
    "swapped times": (
        "changes --since 2026-02-01 --until 2026-01-01",
        ["--since is not before --until"],
    ),
    "reread of the future": ("reread books --since 2100-01-01", ["is in the future"]),
    "huge number of versions": (f"prune --keep-versions {10**23}", ["--keep-versions", "or 0"]),
    "huge number of weeks": ("plan --changes --weeks 1e9", ["too large", "5,200 weeks"]),
    "no number of weeks": ("plan --changes --weeks nan", ["--weeks", "greater than 0"]),
    "huge number of URLs": (f"plan --changes --urls {10**23}", ["too large", "5,200 weeks"]),
    "huge sample": (f"learn books --budget 720/day --sample {10**23}", ["is more than"]),
    "keep-days out of range": ("prune --keep-days 1e300", ["--keep-days", "36,500"]),
    "wrapper unknown": ("wrapper check nosuch", ["nosuch"]),
    "wrapper bad key": ("wrapper check {}/key.toml", ["key.toml", "feilds"]),
    "wrapper bad URL": ("wrapper check books books.html", ["books.html"]),
}
# Commands that open the database, and so create its collections, before they fail.
OPENING = {
    "nothing to forget", "unwatched page", "no targets", "unknown spider", "wrapper unknown",
    "file as spider",
}  # fmt: skip
USAGE = {
    "left-over argument": ("crawl books quotes", "quotes"),
    "unknown option": ("crawl books --fast", "--fast"),
    "no spider": ("crawl", "SPIDER"),
    "bad -a": ("crawl books -a limit", "-a"),
    "unknown action": ("db restart", "restart"),
    "left-over of a command": ("targets books quotes", "quotes"),
    "last visits of a negative number": ("history http://a.test/ --last -1", "--last"),
    "huge limit": (f"changes --limit {10**23}", "more than 1,000,000,000"),
    "unknown option of a command": ("history http://a.test/ --fast", "--fast"),
}
ENVIRONMENT = {
    "FRESHET_COMMIT_SIZE": "abc",
    "FRESHET_IN_FLIGHT": "0",
    "FRESHET_DATABASE": "a/b",
    "FRESHET_RESPONSE_MB": "-1",
    "MONGO_URI": "postgres://localhost/",
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    return tmp_path


@pytest.mark.parametrize("case", INPUT)
def test_bad_input_prints_one_line(freshet: Freshet, database: Db, files: Path, case: str) -> None:
    words, named = INPUT[case]
    result = freshet(*words.format(files).split())
    assert result.code == 1, result.err
    assert result.out == ""
    assert result.complaint.startswith(f"scrapy {words.split()[0]}: ")
    assert all(name in result.complaint for name in named), result.complaint
    written = [name for name in database.list_collection_names() if database[name].find_one()]
    assert written == (["meta"] if case in OPENING else [])


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_exits_with_code_2(freshet: Freshet, database: Db, case: str) -> None:
    words, named = USAGE[case]
    result = freshet(*words.split())
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    complaint = [line for line in result.err.splitlines() if "error:" in line]
    assert len(complaint) == 1
    assert named in complaint[0]
    assert database.list_collection_names() == []


def test_misspelled_command_is_corrected() -> None:
    for words in (["crwal", "books"], ["--nolog", "crwal"]):
        done = subprocess.run(
            [sys.executable, "-m", "scrapy", *words],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "scrapy: unknown command: 'crwal'. Did you mean crawl?\n"


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_bad_environment_variable_prints_one_line(
    freshet: Freshet, database: Db, name: str
) -> None:
    result = freshet("crawl", "books", **{name: ENVIRONMENT[name]})
    assert result.code == 1
    assert name in result.complaint
    assert database.list_collection_names() == []


@pytest.mark.parametrize("command", ["crawl books", "targets", "history http://a.test/"])
def test_unreachable_server_is_reported_within_ten_seconds(freshet: Freshet, command: str) -> None:
    before = time.monotonic()
    uri = "mongodb://me:hush@127.0.0.1:1/x"
    result = freshet(*command.split(), MONGO_URI=uri, FRESHET_MONGO_TIMEOUT_SECONDS=1)
    assert time.monotonic() - before < 10
    assert result.code == 1
    assert "MongoDB at mongodb://127.0.0.1:1/x" in result.complaint
    assert "hush" not in result.err


@pytest.mark.soak
def test_default_timeout_reports_unreachable_server_in_ten_seconds(
    freshet: Freshet,
) -> None:
    before = time.monotonic()
    assert freshet("crawl", "nosuch").code == 1
    # A loaded machine takes seconds to start a process.
    startup_seconds = time.monotonic() - before
    before = time.monotonic()
    result = freshet("crawl", "books", MONGO_URI="mongodb://127.0.0.1:1/x")
    assert time.monotonic() - before - startup_seconds < 10
    assert result.code == 1
    message = result.complaint
    assert message.count("(") == message.count(")"), (
        "the driver's message is not cut inside brackets"
    )


def test_server_that_refuses_the_user_is_reported_with_a_fix(freshet: Freshet) -> None:
    with second_mongod("--auth") as (_, uri):
        cases = {
            uri: "not authorized. Add a user with the role readWrite to the URI: ",
            uri.replace("://", "://me:secret@"): "authentication failed. Check user and password ",
        }
        for given, problem in cases.items():
            for words in ("crawl books", "changes"):
                result = freshet(*words.split(), MONGO_URI=f"{given}/shop")
                assert result.code == 1, words
                assert problem in result.complaint
                assert "secret" not in result.complaint
            checked = freshet("doctor", "--quick", MONGO_URI=f"{given}/shop")
            shown = " ".join(checked.out.split())
            assert (checked.code, problem in shown) == (1, True), shown


def test_invalid_database_address_is_a_one_line_error(freshet: Freshet) -> None:
    result = freshet("targets", MONGO_URI="localhost")
    assert result.code == 1
    assert result.complaint.startswith("scrapy targets: MONGO_URI: Invalid URI scheme")
    assert "unexpected argument" in freshet("db", "uri", "mongodb://x").err
