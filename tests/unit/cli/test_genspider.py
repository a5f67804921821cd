"""`scrapy genspider -t wrapper` writes a working spider."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from crawler.config import PROJECT
from crawler.extract.site_definition import Wrapper
from crawler.items import Kind
from spiders.wrapper import Arguments, WrapperSpider
from tests.integration.forked import python
from tests.integration.harness import LIMIT_SECONDS, Result


def genspider(folder: Path, *args: str, code: int = 0) -> Result:
    """Run `scrapy genspider` in a folder; code: expected exit code."""
    environment = os.environ | {
        "PYTHONPATH": str(PROJECT), "SCRAPY_SETTINGS_MODULE": "crawler.settings",
        "RUN_IN": str(folder),
    }  # fmt: skip
    process = python("scrapy", ["genspider", "-s", "NEWSPIDER_MODULE=", *args], environment)
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == code, err
    return Result(code, out, err)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> type[WrapperSpider]:
    """Return the class of a generated spider."""
    folder = tmp_path_factory.mktemp("generated")
    genspider(folder, "-t", "wrapper", "tea-shop", "tea.example")
    spec = importlib.util.spec_from_file_location("tea_shop", folder / "tea_shop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tea_shop"] = module
    spec.loader.exec_module(module)
    spider_class: type[WrapperSpider] = module.TeaShopSpider
    return spider_class


@pytest.fixture(scope="module")
def wrapper(generated: type[WrapperSpider]) -> Wrapper:
    """Return the site definition of the generated spider."""
    return generated.read_wrapper(Arguments())


def test_a_generated_spider_is_a_valid_wrapper(wrapper: Wrapper) -> None:
    assert wrapper.name == "tea-shop"
    assert wrapper.starts == ("https://tea.example/",)
    assert set(wrapper.fields) == {"title", "price"}


def test_generated_url_patterns_match(wrapper: Wrapper) -> None:
    assert wrapper.match("https://tea.example/category/green/").category == "green"
    assert wrapper.match("https://tea.example/item/5").kind is Kind.ITEM


def test_generated_spider_can_be_created(generated: type[WrapperSpider]) -> None:
    assert generated().start_urls == ["https://tea.example"]


def test_template_is_listed_with_scrapys_templates(tmp_path: Path) -> None:
    listed = genspider(tmp_path, "--list").out.split()
    assert {"basic", "wrapper"} <= set(listed)


@pytest.mark.parametrize(
    ("name", "url", "complaint"),
    [
        ("tea shop", "tea.example", "'tea shop' is not a valid name of a spider"),
        ('tea"shop', "tea.example", "is not a valid name of a spider"),
        ("../tea", "tea.example", "'../tea' is not a valid name of a spider"),
        ("tea", 'tea.example/"', "is not a valid URL or host"),
        ("old-shop", "tea.example", "old_shop.py: the file exists. Choose another name"),
    ],
)
def test_unusable_names_write_nothing(tmp_path: Path, name: str, url: str, complaint: str) -> None:
    old = tmp_path / "old_shop.py"
    old.write_text("# mine\n", encoding="utf-8")
    result = genspider(tmp_path, "-t", "wrapper", name, url, code=1)
    assert complaint in result.complaint
    assert [*tmp_path.iterdir()] == [old]
    assert old.read_text(encoding="utf-8") == "# mine\n"


def test_plain_spiders_are_reported(tmp_path: Path) -> None:
    assert "plain Scrapy spider" not in genspider(tmp_path, "-t", "wrapper", "tea", "a.example").err
    plain = genspider(tmp_path, "coffee", "b.example").err
    assert "coffee is a plain Scrapy spider" in plain
    assert "use -t wrapper" in plain
