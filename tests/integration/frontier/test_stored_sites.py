"""Sites without a spider class: stored site definitions, crawled by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.harness import ROOT, Db, Freshet, Pages, Result, asked, visits
from tests.integration.inside import in_json, run

pytestmark = pytest.mark.soak

ITEMS = ("/item/a.html", "/item/b.html")


@pytest.fixture
def site(pages: Pages) -> Pages:
    pages.list("/list.html", ITEMS)
    for path in ITEMS:
        pages.item(path, path)
    return pages


def shop(freshet: Freshet, site: Pages, name: str = "shop", **keys: object) -> Path:
    given = {"start_urls": [f"{site.url}/list.html"], "item_pages": "/item/", "robots": False}
    return freshet.wrapper(name, **given | {"fields": {"title": "h1"}} | keys)


def crawl(freshet: Freshet, name: str = "shop", *words: object, **env: object) -> Result:
    """Crawl everything, with only the name of the site."""
    return freshet("crawl", name, "-a", "full=1", *words, **env)


def titles(db: Db) -> set[str]:
    return {row["fields"]["title"] for row in db.posts.find({"spider": "shop"})}


def test_site_defined_in_file_is_crawled_by_name(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    file = shop(freshet, site)
    freshet.crawl(file)
    site.item(ITEMS[0], "edited")
    done = crawl(freshet)
    assert done.code == 0, done.err
    assert str(file) not in done.err, "an unchanged file is not mentioned"
    assert titles(database) == {"edited", ITEMS[1]}
    assert [row["spider"] for row in database.runs.find()] == ["shop", "shop"]


def test_edited_file_overrides_stored_definition(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    file = shop(freshet, site)
    freshet.crawl(file)
    shop(freshet, site, item_pages="/item/a")
    site.item(ITEMS[1], "edited")
    done = crawl(freshet)
    assert f"shop: {file} was edited since the last run; using the file" in done.err
    kept = database.sites.find_one({"_id": "shop"})
    assert kept is not None
    assert json.loads(kept["definition"]["keys"])["item_pages"] == "/item/a"
    again = crawl(freshet)
    assert "was edited" not in again.err, "the stored definition is current"


def test_a_second_file_with_the_same_name_is_refused(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    file = shop(freshet, site)
    freshet.crawl(file)
    other = freshet.folder / "copy.toml"
    other.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    freshet.crawl(other)
    freshet.crawl(file)
    text = other.read_text(encoding="utf-8").replace("127.0.0.1:", "other.test:")
    other.write_text(text, encoding="utf-8")
    before = database.visits.count_documents({})
    refused = freshet("crawl", "site", "-a", f"wrapper={other}")
    assert (refused.code, refused.out) == (1, "")
    assert refused.complaint == (
        f"scrapy crawl: {other}: {file} defines another site with this name, 'shop'. Give one of "
        "them another name, or delete the file that you no longer use"
    )
    assert database.visits.count_documents({}) == before
    text = file.read_text(encoding="utf-8").replace("/item/", "/item/a")
    other.write_text(text, encoding="utf-8")
    freshet.crawl(other)


def test_stored_definition_is_used_if_file_is_removed(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    file = shop(freshet, site)
    freshet.crawl(file)
    file.unlink()
    site.item(ITEMS[0], "edited")
    done = crawl(freshet)
    assert done.code == 0, done.err
    assert f"WARNING: shop: {file} was removed; using the site definition stored at 20" in done.err
    assert titles(database) == {"edited", ITEMS[1]}
    shop(freshet, site, item_pages="/item/a")
    assert f"{file} was edited" in crawl(freshet).err, "a restored file takes precedence again"


def test_stored_definition_is_used_if_file_defines_another_site(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    file = shop(freshet, site)
    freshet.crawl(file)
    file.write_text(shop(freshet, site, "news").read_text(encoding="utf-8"), encoding="utf-8")
    done = crawl(freshet)
    assert f"shop: {file} no longer defines this site; using the site definition" in done.err
    assert database.targets.distinct("spider") == ["shop"]


def test_site_defined_by_arguments_is_crawled_by_name(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    given = ("name=shop", f"start_urls={site.url}/list.html", "item_pages=/item/")
    words = [word for argument in given for word in ("-a", argument)]
    assert freshet("crawl", "site", *words).code == 0
    site.item(ITEMS[0], "edited")
    before = len(visits(database))
    done = crawl(freshet, "shop", "-a", "limit=1")
    assert done.code == 0, done.err
    assert len(visits(database)) == before + 1
    assert "WARNING" not in done.err


def test_secrets_are_stored_as_references_only(freshet: Freshet, database: Db, site: Pages) -> None:
    headers = {"Authorization": "Bearer ${TOKEN}", "Accept-Language": "en", "X-Who": "sesame-1"}
    file = shop(freshet, site, headers=headers, cookies={"sid": "sesame-2", "lang": "${LANGUAGE}"})
    env = {"TOKEN": "sesame-3", "LANGUAGE": "sesame-4"}
    freshet.crawl(file, **env)
    kept = database.sites.find_one({"_id": "shop"})
    assert kept is not None
    assert "sesame" not in str(kept)
    keys = json.loads(kept["definition"]["keys"])
    assert keys["headers"] == {"Authorization": "Bearer ${TOKEN}", "Accept-Language": "en"}
    assert keys["cookies"] == {"lang": "${LANGUAGE}"}
    assert crawl(freshet, **env).code == 0
    file.unlink()
    done = crawl(freshet, **env)
    assert done.code == 1
    assert done.complaint == (
        f"scrapy crawl: shop: site definition not found: {file}. The stored copy lacks "
        "headers.X-Who, which may be secret. Restore the definition, and write secrets as "
        "${VARIABLE}"
    )


@pytest.mark.empty_database
def test_site_cannot_take_name_of_spider_class(freshet: Freshet, database: Db, site: Pages) -> None:
    done = freshet("crawl", "site", "-a", f"wrapper={shop(freshet, site, 'quotes')}")
    assert (done.code, database.list_collection_names()) == (1, [])
    assert done.complaint == (
        "scrapy crawl: the name 'quotes' is taken by a spider class. Give this site another name"
    )


def test_unknown_site_is_an_error(freshet: Freshet, database: Db, site: Pages) -> None:
    freshet.crawl(shop(freshet, site))
    done = freshet("crawl", "shpo")
    assert done.code == 1
    assert done.complaint == ("scrapy crawl: spider not found: 'shpo'. Did you mean shop?")


def test_spider_class_cannot_take_name_of_stored_site(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    freshet.crawl(shop(freshet, site))
    done = freshet("genspider", "-t", "wrapper", "shop", "shop.example")
    assert done.code == 1
    assert done.complaint == (
        "scrapy genspider: 'shop' is the name of a spider or of a stored site. Choose another name"
    )
    assert not (ROOT / "spiders" / "shop.py").exists()


def test_list_names_stored_sites(freshet: Freshet, database: Db, site: Pages) -> None:
    freshet.crawl(shop(freshet, site))
    done = run(freshet, "list")
    assert done.out.split() == ["books", "cells", "feeds", "quotes", "shop", "site"]


def test_forget_removes_the_definition(freshet: Freshet, database: Db, site: Pages) -> None:
    freshet.crawl(shop(freshet, site))
    assert crawl(freshet).code == 0
    assert run(freshet, "forget", "shop", "--yes").code == 0
    assert freshet("crawl", "shop").code == 1
    assert run(freshet, "list").out.split() == ["books", "cells", "feeds", "quotes", "site"]


def test_cells_and_feeds_of_files_are_crawled_by_name(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    cells = freshet.folder / "prices.toml"
    cells.write_text(
        f'name = "prices"\n[cells.a]\nurl = "{site.url}{ITEMS[0]}"\ncss = "h1"\nevery = "1h"\n',
        encoding="utf-8",
    )
    assert freshet("crawl", "cells", "-a", f"file={cells}").code == 0
    feeds = freshet.folder / "news.toml"
    feeds.write_text('name = "news"\nweight = 2\n', encoding="utf-8")
    assert freshet("crawl", "feeds", "-a", f"wrapper={feeds}").code == 0
    before = len(visits(database))
    assert crawl(freshet, "prices").code == 0
    assert len(visits(database)) == before + 1
    assert freshet("crawl", "news", "-a", "follow=1").code == 0
    readers = {row["_id"]: row["definition"]["reader"] for row in database.sites.find()}
    assert readers == {"prices": "cells", "news": "feeds"}


def scheduled(freshet: Freshet, *words: object) -> list[str]:
    """Return the sites that the lines of cron crawl."""
    lines = in_json(freshet, "cron", *words)
    commands = [line["command"].partition(" -m scrapy ")[2] for line in lines]  # type: ignore[index]
    return [
        command.partition(" -L ")[0].removeprefix("crawl ")
        for command in commands
        if " -L " in command
    ]


def test_cron_schedules_the_sites_that_have_targets(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    freshet.crawl(shop(freshet, site))
    assert scheduled(freshet) == ["shop"]
    assert scheduled(freshet, "shop", "books") == ["shop", "books"]
    done = run(freshet, "cron")
    assert "# not scheduled, because they have never run: books, feeds, quotes" in done.out


def test_cron_names_sites_that_it_cannot_schedule(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    freshet.crawl(shop(freshet, site))
    freshet.crawl(shop(freshet, site, "old"))
    database.sites.delete_one({"_id": "old"})
    assert scheduled(freshet) == ["shop"]
    assert "# not scheduled: old: it has targets but no site definition: run" in (
        run(freshet, "cron").out
    )


def test_cron_without_targets_suggests_next_step(freshet: Freshet) -> None:
    done = run(freshet, "cron")
    assert (done.code, done.out) == (1, "")
    assert done.complaint == (
        "scrapy cron: no site has targets yet. Run scrapy crawl NAME (books, feeds, quotes) or "
        "scrapy feeds import FILE first, or name sites: scrapy cron NAME|FILE.toml"
    )


def test_scrapy_check_finds_stored_sites(freshet: Freshet, database: Db, site: Pages) -> None:
    freshet.crawl(shop(freshet, site))
    checked = freshet("check", "shop")
    assert checked.code == 0, checked.err


def test_later_spider_class_replaces_stored_definition(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    freshet.crawl(shop(freshet, site))
    code = (
        "from spiders.wrapper import WrapperSpider\n"
        "class Shop(WrapperSpider):\n"
        f"    name, start_urls, item_pages = 'shop', ['{site.url}/list.html'], '/item/a'\n"
    )
    done = freshet.crawl_spider(code, "shop")
    assert (
        "shop: a spider class defines this site now; deleted the stored definition from "
        in done.err
    )
    kept = database.sites.find_one({"_id": "shop"})
    assert kept is not None
    assert "definition" not in kept
    assert asked(site)["/list.html"] == 2, "the class reads the list differently"
