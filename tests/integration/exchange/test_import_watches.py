"""`scrapy import`: watches of other programs become sites, cells and feeds."""

from __future__ import annotations

import io
import json
import os
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.exchange import watch_formats
from crawler.exchange.watch_formats import read_watches
from crawler.exchange.watches import plan
from tests.integration.harness import Db, Freshet
from tests.integration.inside import in_json, run
from tests.integration.recording import Recorder

EXAMPLES = os.environ.get("WATCHES")
OFTEN = {"time_between_check": {"hours": 6}}
WATCHES: dict[str, dict[str, Any]] = {
    "a": {"url": "https://shop.example/1", "include_filters": ["#price"], "tags": ["t1"]} | OFTEN,
    "b": {"url": "https://www.shop.example/2", "include_filters": ["#price"],
          "tags": ["t1"]} | OFTEN,
    "c": {"url": "https://shop.example/3", "include_filters": ["xpath://li", ".x"]} | OFTEN,
    "d": {"url": "https://shop.example/4", "title": "Stock now", "include_filters": [".stock"],
          "time_between_check": {"minutes": 5}},
    "e": {"url": "https://blog.example/feed", "tags": ["t1"], "title": "Blog"},
    "f": {"url": "https://api.example/v1", "include_filters": ["json:$.items[0].price"],
          "headers": {"Accept": "application/json", "X-Key": "s3cret"}},
    "g": {"url": "https://store.example/p", "processor": "restock_diff"},
    "h": {"url": "https://app.example/", "fetch_backend": "html_webdriver",
          "ignore_text": ["ads"], "notification_urls": ["discord://s3cret"]},
    "i": {"url": "https://login.example/", "browser_steps": [{"operation": "click"}]},
    "j": {"url": "https://post.example/", "method": "POST", "body": "a=1"},
    "k": {"url": "https://off.example/", "paused": True},
    "l": {"url": "https://query.example/", "include_filters": ["jq:.[] | select(.a)"]},
    "m": {"url": "file:///etc/passwd"},
    "n": {"url": "https://office.example/", "time_schedule_limit": {
        "enabled": True, "timezone": "Europe/Berlin",
        "monday": {"enabled": True, "start_time": "08:00", "duration": {"hours": "10"}},
        "sunday": {"enabled": True, "start_time": "00:00", "duration": {"hours": "24"}}}},
}  # fmt: skip
SETTINGS = {"application": {"tags": {"t1": {"title": "Tech news"}}}, "requests": {}}
DATASTORE = {"watching": WATCHES, "settings": SETTINGS}
JOBS = r"""
name: Releases
url: https://code.example/releases
filter:
  - css: {selector: "li.release", skip: 1, maxitems: 2}
  - html2text
  - grep: "Version.*"
tags: [code]
---
url: https://code.example/tags
ssl_no_verify: true
cookies: {sid: s3cret}
filters:
  - element-by-id: tags
  - shellpipe: sort -u
---
name: Home
command: ls ~
---
url: https://code.example/doc.pdf
filter: pdf2text,strip
---
url: https://code.example/api
filter: [{jq: '.[].name'}]
---
url: https://code.example/api#again
filter: [{jq: '.[].name'}]
---
navigate: https://app.example/
enabled: false
"""


def written(path: Path, content: str | bytes | dict[str, Any]) -> Path:
    """Write a file, a dict as JSON, and return its path."""
    text = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_watches_become_site_definitions(freshet: Freshet, tmp_path: Path) -> None:
    file = written(tmp_path / "url-watches.json", DATASTORE)
    out = tmp_path / "out"
    report = in_json(freshet, "import", file, "--out", out)
    rows = dict(zip(WATCHES, report["watches"], strict=True))
    assert {key: row["becomes"] for key, row in rows.items()} == {
        **dict.fromkeys("abcfghn", "page"), "d": "cell", "e": "feed", **dict.fromkeys("ijklm"),
    }  # fmt: skip
    assert tomllib.loads((out / "shop-example.toml").read_text()) == {
        "name": "shop-example",
        "start_urls": ["https://shop.example/1", "https://www.shop.example/2"],
        "item_pages": r"^https?://(?:www\.)?shop\.example/",
        "category": "Tech news",
        "item_interval_hours": 6.0,
        "max_interval_hours": 6.0,
        "fields": {"value": {"css": "#price"}},
    }
    assert tomllib.loads((out / "shop-example-2.toml").read_text())["fields"] == {
        "value": {"xpath": "//li", "type": "list"}, "value_2": {"css": ".x", "type": "list"},
    }  # fmt: skip
    assert tomllib.loads((out / "shop-example-cells.toml").read_text()) == {
        "name": "shop-example-cells",
        "cells": {"stock-now": {"url": "https://shop.example/4", "css": ".stock", "type": "list",
                                "every": "300s"}},
    }  # fmt: skip
    api = tomllib.loads((out / "api-example.toml").read_text())
    assert api["fields"] == {"value": {"jmespath": "items[0].price"}}
    assert api["headers"] == {"Accept": "application/json"}
    office = tomllib.loads((out / "office-example.toml").read_text())
    assert office["visiting_hours"] == ["Mon 08:00-18:00", "Sun"]
    assert office["timezone"] == "Europe/Berlin"
    assert "https://blog.example/feed" in (out / "feeds.opml").read_text()
    assert [lost["key"] for lost in rows["f"]["lost"]] == ["headers.X-Key"]
    assert [lost["key"] for lost in rows["h"]["lost"]] == [
        "ignore_text", "notification_urls", "fetch_backend",
    ]  # fmt: skip
    assert rows["l"]["refused"] == "cannot be written as JMESPath: '.[] | select(.a)'"
    assert "browser steps" in rows["i"]["refused"]
    texts = [path.read_text() for path in out.iterdir()]
    assert "s3cret" not in json.dumps(report) + "".join(texts)


def test_jobs_become_site_definitions(freshet: Freshet, tmp_path: Path) -> None:
    file = written(tmp_path / "urls.yaml", JOBS)
    done = run(freshet, "import", file, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert "page  code-example    https://code.example/releases" in lines
    assert "-     job 3: Home: not imported: Freshet runs no commands" in lines
    assert "-     job 6: https://code.example/api#again: not imported: the same as job 5" in lines
    assert "      not carried over: filter shellpipe: Freshet runs no commands" in lines
    assert "7 watches of urlwatch or webchanges became 3 pages, 0 cells, 0 feeds" in done.out
    assert "Next: scrapy crawl site -a wrapper=" in lines[-1]
    values = tomllib.loads((tmp_path / "out" / "code-example.toml").read_text())
    assert values["category"] == "code"
    value = values["fields"]["value"]
    assert value["type"] == "list"
    assert value["xpath"].startswith("(descendant-or-self::li[")
    assert value["xpath"].endswith(")[position() > 1 and position() <= 3]")
    second = tomllib.loads((tmp_path / "out" / "code-example-2.toml").read_text())
    assert (second["verify_tls"], second["fields"]) == (False, {"value": {"css": '[id="tags"]'}})


def test_an_import_into_the_database_can_be_repeated(
    freshet: Freshet, database: Db, tmp_path: Path
) -> None:
    file = written(tmp_path / "url-watches.json", DATASTORE)
    assert "would become 7 pages, 1 cell" in run(freshet, "import", file, "--dry-run").out
    assert database.sites.count_documents({}) == 0
    done = run(freshet, "import", file)
    assert (done.code, done.err) == (0, ""), done.err
    assert "Next: scrapy crawl shop-example, " in done.out
    names = {row["_id"]: row["definition"]["reader"] for row in database.sites.find()}
    assert len(names) == 7
    assert (names["shop-example"], names["shop-example-cells"]) == ("site", "cells")
    assert database.targets.count_documents({"kind": "feed", "categories": "Tech news"}) == 1
    assert all(row["known"] for row in in_json(freshet, "import", file)["sites"])
    assert database.sites.count_documents({}) == 7
    # A site with other keys is not overwritten.
    WATCHES_2 = {"watching": {"x": {"url": "https://shop.example/9"}}}  # noqa: N806
    report = in_json(freshet, "import", written(tmp_path / "more.json", WATCHES_2))
    assert [site["name"] for site in report["sites"]] == ["shop-example-3"]


def test_an_imported_page_is_crawled(
    freshet: Freshet, database: Db, tmp_path: Path, pages: Any
) -> None:
    pages.file("terms.html", "<body><p id=price>10</p>")
    watch = {"url": f"{pages.url}/terms.html", "include_filters": ["#price"], "tag": "Law"}
    file = written(tmp_path / "url-watches.json", {"watching": {"a": watch}})
    [site] = in_json(freshet, "import", file)["sites"]
    done = freshet("crawl", site["name"])
    assert done.code == 0, done.err
    post = database.posts.find_one({"url": watch["url"]})
    assert post is not None
    assert post["fields"]["value"] == "10"
    target = database.targets.find_one({"url": watch["url"]})
    assert target is not None
    assert target["categories"] == ["Law"]


def archive(entries: dict[str, Any]) -> bytes:
    """Return a zip archive of JSON documents."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in entries.items():
            made.writestr(name, content if isinstance(content, bytes) else json.dumps(content))
    return file.getvalue()


def test_backups_of_all_versions_are_read(tmp_path: Path) -> None:
    old = archive({"url-watches.json": DATASTORE, "a/1700000000.txt": b"text", "secret.txt": b"x"})
    new = archive(
        {"changedetection.json": {"settings": {}}, "t1/tag.json": {"title": "Tech news"}}
        | {f"{key}/watch.json": watch for key, watch in WATCHES.items()}
    )
    results = [read_watches(written(tmp_path / "backup.zip", data)) for data in (old, new)]
    assert results[0].watches == results[1].watches
    assert results[0].watches[0].tags == ("Tech news",)


def test_watches_that_use_the_default_ignore_their_own_interval_and_hours(tmp_path: Path) -> None:
    hours = {
        "enabled": True,
        "friday": {"enabled": True, "start_time": "09:00", "duration": {"hours": 24}},
        "saturday": {"enabled": True, "start_time": "20:00", "duration": {"hours": 10}},
    }
    own = {"time_between_check": {"minutes": 5}, "time_schedule_limit": {
        "enabled": True, "monday": {"enabled": True, "start_time": "08:00",
                                    "duration": {"hours": "10"}}}}  # fmt: skip
    document = {
        "watching": {
            name: {"url": f"https://{name}.example/", "time_between_check_use_default": use} | own
            for name, use in (("default", True), ("own", False))
        },
        "settings": {
            "application": {"scheduler_timezone_default": "Asia/Tokyo"},
            "requests": {"time_between_check": {"hours": 3}, "time_schedule_limit": hours},
        },
    }
    default, other = read_watches(written(tmp_path / "url-watches.json", document)).watches
    assert (default.every, other.every) == (3 * 3600, 300)
    assert default.keys["visiting_hours"] == [
        "Fri 09:00-24:00",
        "Sat 00:00-09:00",
        "Sat 20:00-06:00",
    ]
    assert other.keys["visiting_hours"] == ["Mon 08:00-18:00"]
    assert default.keys["timezone"] == other.keys["timezone"] == "Asia/Tokyo"


def test_the_path_of_a_whole_json_document_is_imported(tmp_path: Path) -> None:
    paths = ("json:$", "jq:.", "jq:.[]", "json:")
    watching = {path: {"url": f"https://a.example/{n}", "include_filters": [path]}
                for n, path in enumerate(paths)}  # fmt: skip
    file = read_watches(written(tmp_path / "url-watches.json", {"watching": watching}))
    assert [watch.fields.get("value") for watch in file.watches] == [
        {"jmespath": "@"}, {"jmespath": "@"}, {"jmespath": "[]", "type": "list"}, None,
    ]  # fmt: skip
    assert file.watches[3].refusal is not None


def test_hostile_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)]
    laughs = "k0: &a0 [x, x]\n" + "".join(lines) + "url: https://a.example/\n"
    bomb = archive({"url-watches.json": b" " * (watch_formats.MAX_ENTRY_BYTES + 1)})
    files: list[tuple[str | bytes, str]] = [
        (laughs, "aliases (*name) stand for more than 10,000 values. Write them out"),
        ("url: " + "[" * 500, "more than 40 levels"),
        ("url: [", "line 1: not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
        ("just text", "no watches found. Give url-watches.json, a backup"),
        ("", "no watches found"),
        ("{" * 100_000, "not valid JSON. Export the watches again"),
        ('{"a": ' * 100_000, "not valid JSON"),
        ('{"watching": 1}', "no watches found. Give url-watches.json or a backup"),
        ("<opml/>", "looks like OPML. Run scrapy feeds import"),
        (bomb, "url-watches.json is too large"),
        (bomb[:-30], "the archive is damaged. Export the backup again"),
        (archive({"../../watch.txt": b"x"}), "no watches found"),
        ("url: !!bool x", "not valid YAML. Fix the file"),
        ("url: !!timestamp x", "not valid YAML. Fix the file"),
        ("url: !!int ''", "not valid YAML. Fix the file"),
    ]
    for content, problem in files:
        path = written(tmp_path / "file", content)
        with pytest.raises(ConfigError) as error:
            read_watches(path)
        assert problem in str(error.value)
        assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    monkeypatch.setattr(watch_formats, "MAX_YAML_BYTES", 10)
    with pytest.raises(ConfigError, match=r"larger than 0 MB\. Split it into smaller files"):
        read_watches(written(tmp_path / "file", JOBS))


def test_invalid_values_reject_only_their_watch(tmp_path: Path) -> None:
    odd: dict[str, Any] = {
        "a": None, "b": [], "c": {"url": 5}, "d": {"url": "https://[::1", "tags": 7},
        "e": {"url": "https://u:p@a.example/"}, "f": {"url": "https://a.example/" + "x" * 9000},
        "g": {"url": "https://a.example/g", "include_filters": ["li["]},
        "h": {"url": "https://a.example/h", "include_filters": ["#x"] * 30},
        "i": {"url": "https://a.example/i", "time_between_check": {"hours": "many"},
              "headers": [1], "time_schedule_limit": {"enabled": True, "monday": {
                  "enabled": 1, "start_time": "08:00", "duration": {"hours": [1]}}}},
        "j": {"url": "https://a.example/j", "time_between_check": {"days": 9999}},
        "k": {"url": "https://a.example/k", "minutes_between_check": 0.001},
    }  # fmt: skip
    file = read_watches(written(tmp_path / "file", {"watching": odd}))
    made = plan(file, Config.load(), {})
    assert sorted(made.places) == [8, 9, 10]
    reasons = [watch.refusal or "" for watch in file.watches]
    assert "must not contain a user name or password" in reasons[4]
    assert "longer than" in reasons[5]
    assert "bad selector 'li['" in reasons[6]
    assert "too many" in reasons[7]
    [longest] = [each for each in made.definitions if "max_interval_hours" in each.values]
    assert longest.values["max_interval_hours"] == 672


def test_half_an_emoji_in_a_watch_does_not_stop_the_import(
    freshet: Freshet, tmp_path: Path
) -> None:
    watch = {
        "url": "https://shop.example/1",
        "title": "Tea \ud83d",
        "include_filters": ["h1\udc00"],
    }
    path = tmp_path / "url-watches.json"
    path.write_text(json.dumps({"watching": {"a": watch}, "settings": {}}), encoding="utf-8")
    done = freshet("import", path, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    (definition,) = (tmp_path / "out").glob("*.toml")
    assert "h1\ufffd" in definition.read_text("utf-8")


def test_invalid_documents_of_backup_are_ignored(tmp_path: Path) -> None:
    files = {
        "url-watches.json": {"watching": [], "settings": {"application": []}},
        "a/watch.json": {"url": "https://a.example/", "tags": ["t"]},
        "t/tag.json": {"title": "Tech news"},
    }
    data = archive({name: json.dumps(content).encode() for name, content in files.items()})
    (watch,) = read_watches(written(tmp_path / "backup.zip", data)).watches
    assert (watch.url, watch.tags) == ("https://a.example/", ("Tech news",))


def test_invalid_filter_options_reject_the_job(tmp_path: Path) -> None:
    jobs = """
- {url: "https://a.example/", filter: [{css: {selector: a, skip: .inf}}]}
- {url: "https://a.example/", filter: [{css: {selector: "NESTED", maxitems: 2}}]}
"""
    text = jobs.replace("NESTED", ":not(" * 2000 + "a" + ")" * 2000)
    watches = read_watches(written(tmp_path / "urls.yaml", text)).watches
    assert [(watch.refusal or "")[:25] for watch in watches] == ["the selector is not valid"] * 2


def test_watches_are_read_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(pipe.write_text, json.dumps(DATASTORE))
        assert len(read_watches(pipe).watches) == len(WATCHES)
        writing.result()


def test_import_without_supported_watches_fails(freshet: Freshet, tmp_path: Path) -> None:
    file = written(tmp_path / "urls.yaml", "command: ls\n")
    done = run(freshet, "import", file, "--out", tmp_path / "out")
    assert done.code == 1
    assert "1 watch of urlwatch or webchanges became 0 pages" in done.out
    assert not (tmp_path / "out").exists()


def test_variables_in_a_file_from_outside_stay_text(
    freshet: Freshet, database: Db, tmp_path: Path
) -> None:
    with Recorder() as site:
        site.answers["/a"] = "<p id=x>1</p>"
        watches = {
            "a": {"url": f"{site.url}/a", "include_filters": ["#x"],
                  "headers": {"User-Agent": "bot ${SHOP_KEY} $${SHOP_KEY}", "Accept": "${HOME}"}},
        }  # fmt: skip
        file = written(tmp_path / "url-watches.json", {"watching": watches})
        env = {"SHOP_KEY": "s3cret-k3y", "FRESHET_PRIVATE_ADDRESSES": 1}
        report = in_json(freshet, "import", file, **env)
        assert [lost["key"] for lost in report["watches"][0]["lost"]] == [
            "headers.User-Agent", "headers.Accept",
        ]  # fmt: skip
        (made,) = report["sites"]
        assert freshet("crawl", made["name"], **env).code == 0
        both = [headers for path, headers in site.asked if path == "/a"]
        assert len(both) == 2, "visited by the import and by the crawl"
        assert {each["user-agent"] for each in both} == {"bot ${SHOP_KEY} $${SHOP_KEY}"}
        assert {each["accept"] for each in both} == {"${HOME}"}
        assert "s3cret" not in str(site.asked)


def test_each_page_is_visited_once_to_check_its_watch(
    freshet: Freshet, database: Db, tmp_path: Path
) -> None:
    offer = '{"@type": "Offer", "price": 49.9, "priceCurrency": "EUR"}'
    data = f'{{"@context": "https://schema.org", "@type": "Product", "offers": {offer}}}'
    html = f"<h1>Tea</h1><p id=x>A tea.</p><script type='application/ld+json'>{data}</script>"
    with Recorder() as site:
        site.answers |= dict.fromkeys(("/a", "/b", "/c"), html)
        site.answers["/api"] = '{"offers": {"price": 5}}'
        site.extra["/api"] = {"Content-Type": "application/json"}
        price = "json:$.offers.price"
        filters = {"/a": price, "/b": "#x", "/c": "#y", "/api": price}
        watches: dict[str, Any] = {
            path: {"url": site.url + path, "include_filters": [text]}
            for path, text in filters.items()
        }
        watches["gone"] = {"url": f"{site.url}/gone"}
        file = written(tmp_path / "url-watches.json", {"watching": watches})
        env = {"FRESHET_PRIVATE_ADDRESSES": 1}
        report = in_json(freshet, "import", file, "--no-check", "--dry-run", **env)
        assert not site.asked
        report = in_json(freshet, "import", file, "--out", tmp_path / "out", **env)
        assert [path for path, _ in site.asked if path != "/robots.txt"].count("/b") == 1
    a, b, c, api, gone = report["watches"]
    assert [lost["key"] for lost in a["lost"]] == ["json"]
    assert a["problem"] is b["problem"] is api["problem"] is None
    assert c["problem"] == "error: none of the fields found: value"
    assert gone["problem"] == "gone: 404"
    made = {name: tomllib.loads((tmp_path / "out" / f"{name}.toml").read_text())
            for name in {row["site"] for row in (a, api)}}  # fmt: skip
    assert "fields" not in made[a["site"]]
    assert made[api["site"]]["fields"] == {"value": {"jmespath": "offers.price"}}


@pytest.mark.parametrize(
    "proxies",
    [
        "http_proxy: 'http://anna:${PASSWORD}@proxy.example:80'\n",
        "http_proxy: 'http://a.example:80'\nhttps_proxy: 'http://b.example:80'\n",
    ],
)
def test_a_proxy_that_is_not_carried_over_is_named(tmp_path: Path, proxies: str) -> None:
    file = read_watches(written(tmp_path / "urls.yaml", f"url: http://a.example/\n{proxies}"))
    assert "proxy" not in file.watches[0].keys
    assert [lost.key for lost in file.watches[0].lost] == ["http_proxy"]


def test_variables_in_the_proxy_of_a_job_stay_text(tmp_path: Path) -> None:
    job = "url: http://a.example/\nhttp_proxy: 'http://${SHOP_KEY}.evil.example:80'\n"
    file = read_watches(written(tmp_path / "urls.yaml", job))
    made = plan(file, Config.load(), {})
    assert made.definitions[0].values["proxy"] == "http://$${SHOP_KEY}.evil.example:80"
    assert [lost.key for lost in file.watches[0].lost] == ["http_proxy"]


def imported(tmp_path: Path, *watches: dict[str, Any], **application: Any) -> list[Any]:
    """Return the definitions of watches, or why each was refused, and the settings lost."""
    watching = {str(n): {"url": f"https://a.example/{n}"} | w for n, w in enumerate(watches)}
    document = {"watching": watching, "settings": {"application": application}}
    file = read_watches(written(tmp_path / "url-watches.json", document))
    made = plan(file, Config.load(), {})
    values = {n: each.values for each in made.definitions for n in each.watches}
    return [
        (values.get(n) or watch.refusal, [lost.key for lost in watch.lost])
        for n, watch in enumerate(file.watches)
    ]


@pytest.mark.parametrize(
    ("watch", "refusal"),
    [
        ({"url": "https://a.example/terms.PDF"}, "reads HTML, XML and JSON"),
        ({"url": "https://a.example/photo.jpg?w=2"}, "reads HTML, XML and JSON"),
        ({"content-type": "application/pdf"}, "reads HTML, XML and JSON"),
        ({"url": "https://app.example/#/room/12"}, "without JavaScript"),
        ({"url": "https://app.example/#!room"}, "without JavaScript"),
        ({"include_filters": ["xpath:string-join(//a, ',')"]}, "unknown function string-join()"),
        ({"include_filters": ["//table[matches(., 'x')]"]}, "unknown function matches()"),
        ({"include_filters": ["//p[$x]"]}, "undefined variable $x"),
        ({"include_filters": ["//a/lower-case(.)"]}, "bad selector"),
        ({"include_filters": ["json:$.a"], "content-type": "text/html"}, "only JSON documents"),
    ],
)
def test_watches_that_could_never_work_are_refused(
    tmp_path: Path, watch: dict[str, Any], refusal: str
) -> None:
    often = {"time_between_check": {"minutes": 5}}
    for more in ({}, often):
        refused, valid = imported(tmp_path, watch | more, {"include_filters": ["#x"]} | more)
        assert refusal in refused[0]
        assert isinstance(valid[0], dict), "another watch of the host is refused, too"


def test_restock_watches_become_pages_with_offers(tmp_path: Path) -> None:
    for interval in ({"hours": 3}, {"minutes": 5}):
        restock = {"processor": "restock_diff", "time_between_check": interval}
        ((values, lost),) = imported(tmp_path, restock)
        assert "fields" not in values
        assert "cells" not in values
        assert "processor" in lost


def test_elements_to_leave_out_are_imported_for_main_texts(tmp_path: Path) -> None:
    out = {"subtractive_selectors": ["nav", "css:.ad", "//p[1]", "nav"]}
    text, fields, often = imported(
        tmp_path, out, out | {"include_filters": ["#x"]},
        out | {"time_between_check": {"minutes": 5}}, global_subtractive_selectors=["footer"],
    )  # fmt: skip
    assert text[0]["ignore"] == ["nav", ".ad", "footer"]
    assert text[1] == ["subtractive_selectors"], "XPath is not reported"
    for values, lost in (fields, often):
        assert "ignore" not in values
        assert {*lost} == {"subtractive_selectors", "global_subtractive_selectors"}


def test_every_setting_of_a_watch_is_carried_over_or_reported(tmp_path: Path) -> None:
    ((_, lost),) = imported(
        tmp_path,
        {"title": "Kettle", "url": "https://a.example/x#part", "future_setting": 1,
         "filter_text_removed": False, "extract_lines_containing": ["a"], "processor": "image_diff",
         "uuid": "u", "last_checked": 5, "notification_muted": False,
         "time_between_check": {"hours": "often"}},
    )  # fmt: skip
    assert {*lost} == {
        "title", "#part", "future_setting", "filter_text_removed", "extract_lines_containing",
        "processor", "time_between_check",
    }  # fmt: skip
    job = "url: https://a.example/\nname: Kettle\nfuture: 1\nfilter: [html2text]\n"
    file = read_watches(written(tmp_path / "urls.yaml", job))
    plan(file, Config.load(), {})
    assert {each.key for each in file.watches[0].lost} == {"name", "future"}


def test_conditions_of_json_paths_are_imported(tmp_path: Path) -> None:
    paths = ["json:$.items[?(@.sku=='K1')].price", "json:$[?(@.n == 5)].x"]
    rows = imported(tmp_path, *({"include_filters": [path]} for path in paths))
    assert [row[0]["fields"]["value"] for row in rows] == [
        {"jmespath": "items[?sku=='K1'].price", "type": "list"},
        {"jmespath": "[?n==`5`].x", "type": "list"},
    ]


def test_aliases_are_resolved_or_refuse_their_job_only(tmp_path: Path) -> None:
    jobs = """
url: https://a.example/1
filter: &text [html2text, {css: "#x"}]
---
url: https://a.example/2
filter: *text
---
url: https://a.example/3
filter: *missing
---
- &me [*me]
---
<<: &usual {ssl_no_verify: true}
url: https://a.example/4
---
<<: *usual
url: https://a.example/5
"""
    watches = read_watches(written(tmp_path / "urls.yaml", jobs)).watches
    assert [watch.fields for watch in watches[:2]] == [{"value": {"css": "#x"}}] * 2
    assert watches[2].refusal == "the alias *missing has no value"
    assert watches[3].refusal is not None
    assert [watch.keys for watch in watches[4:]] == [{"verify_tls": False}] * 2


@pytest.mark.skipif(EXAMPLES is None, reason="WATCHES does not name a folder of real files")
def test_real_files_are_read(tmp_path: Path) -> None:
    """Print the results of reading each real file (with -s)."""
    files = sorted(path for path in Path(EXAMPLES or "").glob("*/*") if path.is_file())
    assert files
    for path in files:
        file = read_watches(path)
        made = plan(file, Config.load(), {})
        for n, watch in enumerate(file.watches):
            assert (n in made.places) == (watch.refusal is None)
        refused = sorted({watch.refusal for watch in file.watches if watch.refusal})
        lost = sorted({lost.key for watch in file.watches for lost in watch.lost})
        kinds = f"{len(made.definitions)} definitions, {len(made.feeds)} feeds"
        print(f"{path.name}: {len(made.places)} of {len(file.watches)}, {kinds}; {refused}; {lost}")
