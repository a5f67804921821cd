"""The documentation builds, covers every feature, and has no broken links."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted(DOCS.rglob("*.md")))]
# Unescaped bars separate the cells of a table.
CELLS = re.compile(r"(?<!\\)\|")


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference_pages = loaded("reference_pages")
GENERATORS = reference_pages.GENERATORS


@cache
def generated(name: str) -> list[str]:
    return list(GENERATORS[name]())


@pytest.mark.parametrize("name", GENERATORS)
def test_every_reference_row_has_a_description(name: str) -> None:
    lines = generated(name)
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) > 3
    for row in rows:
        empty = [cell for cell in CELLS.split(row)[1:-1] if not cell.strip()]
        assert not empty, f"no description: {row}"
    assert ".\n" not in lines, "a command, action, or collection has no description"


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_section_is_on_exactly_one_page(name: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")]
    parts = [match["name"] for text in texts for match in reference_pages.PART.finditer(text)]
    assert parts.count(name) == 1
    assert set(parts) == GENERATORS.keys()


@pytest.mark.parametrize("page", list(reference_pages.pages()), ids=lambda page: page.stem)
def test_generated_parts_of_a_page_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == reference_pages.current(text), "run: make reference"


@pytest.mark.parametrize("command", sorted((ROOT / "crawler/cli/commands").glob("[a-z]*.py")))
def test_every_command_has_a_section(command: Path) -> None:
    assert f"\n## scrapy {command.stem}\n" in generated("commands")


@pytest.mark.soak
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, "-d", tmp_path / "doctrees", DOCS, tmp_path / "html"],
        check=False, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert list((tmp_path / "html/reference/schemas").glob("*.json"))


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_point_to_existing_files(page: str) -> None:
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", (ROOT / page).read_text(encoding="utf-8")):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("picture", sorted((DOCS / "pictures").glob("*.svg")))
def test_pictures_are_used(picture: Path) -> None:
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    assert any(f"pictures/{picture.name})" in page for page in pages)
    # GitHub does not render SVG images that load external resources.
    assert not re.search(r"(?:src|href|url)\W+https?:", picture.read_text(encoding="utf-8"))


def test_recorded_commands_appear_on_pages() -> None:
    pictures = loaded("make_pictures")
    pages = [(ROOT / page).read_text(encoding="utf-8").replace("\\\n    ", "") for page in PAGES]
    recorded = [command for *_, commands in pictures.RECORDINGS for command in commands]
    for command in [*recorded, *pictures.CHARTS.values()]:
        assert any(command in page for page in pages), command
    names = {name for name, *_ in pictures.RECORDINGS} | set(pictures.CHARTS)
    by_hand = {"data-flow", "freshness"}
    assert names | by_hand == {path.stem for path in (DOCS / "pictures").glob("*.svg")}


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_files_named_on_pages_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for path in re.findall(r"`((?:crawler|pipelines|schedules|spiders|tests)/[\w/]+\.\w+)`", text):
        assert (ROOT / path).exists(), path


def test_every_collection_has_a_stated_limit() -> None:
    assert reference_pages.LIMITS.keys() == reference_pages.VALIDATORS.keys() | {"meta"}
