"""The documentation names everything there is."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from crawler.config import UNPREFIXED, Config
from crawler.extract.wrapper import Wrapper
from crawler.storage.schema import VALIDATORS

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = (ROOT / "docs/reference/by-hand.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs/reference/site-definition.md").read_text(encoding="utf-8")
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]


@pytest.mark.parametrize("field", Config.model_fields)
def test_every_setting_is_in_the_reference(field: str) -> None:
    name = next((k for k, of in UNPREFIXED.items() if of == field), f"FRESHET_{field.upper()}")
    assert f"| `{name}` |" in REFERENCE


@pytest.mark.parametrize("command", sorted((ROOT / "crawler/commands").glob("[a-z]*.py")))
def test_every_command_is_in_the_reference(command: Path) -> None:
    assert f"`scrapy {command.stem}" in REFERENCE


@pytest.mark.parametrize("collection", VALIDATORS)
def test_every_collection_is_in_the_reference(collection: str) -> None:
    assert f"\n### {collection}\n" in REFERENCE


@pytest.mark.parametrize("key", Wrapper.model_fields)
def test_every_key_of_a_wrapper_is_in_the_guide(key: str) -> None:
    assert f"`{key}`" in GUIDE


@pytest.mark.parametrize("page", PAGES)
def test_links_between_the_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", (ROOT / page).read_text(encoding="utf-8")):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("picture", sorted((ROOT / "docs/pictures").glob("*.svg")))
def test_pictures_are_small_and_shown_somewhere(picture: Path) -> None:
    assert picture.stat().st_size < 60_000
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    assert any(f"pictures/{picture.name})" in page for page in pages)
    # GitHub shows no picture that loads something from elsewhere.
    assert not re.search(r"(?:src|href|url)\W+https?:", picture.read_text(encoding="utf-8"))


def test_the_commands_of_the_pictures_are_those_of_the_pages() -> None:
    spec = spec_from_file_location("make_pictures", ROOT / "docs/make_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = module_from_spec(spec)
    spec.loader.exec_module(pictures)
    pages = [(ROOT / page).read_text(encoding="utf-8").replace("\\\n    ", "") for page in PAGES]
    recorded = [command for *_, commands in pictures.RECORDINGS for command in commands]
    for command in [*recorded, *pictures.CHARTS.values()]:
        assert any(command in page for page in pages), command
    names = {name for name, *_ in pictures.RECORDINGS} | set(pictures.CHARTS)
    by_hand = {"data-flow", "freshness"}
    assert names | by_hand == {path.stem for path in (ROOT / "docs/pictures").glob("*.svg")}


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_files_that_the_pages_name_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for path in re.findall(r"`((?:crawler|pipelines|schedules|spiders|tests)/[\w/]+\.\w+)`", text):
        assert (ROOT / path).exists(), path
