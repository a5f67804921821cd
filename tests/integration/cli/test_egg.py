"""The project packaged for Scrapyd: the egg is complete, and crawls run from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.integration.harness import HIDDEN, PROXIES, ROOT, Db, Freshet, Pages, outcomes

pytestmark = pytest.mark.soak

# The setup.py that scrapyd-deploy writes if there is none.
SETUP = """from setuptools import setup, find_packages
setup(
    name         = 'project',
    version      = '1.0',
    packages     = find_packages(),
    entry_points = {'scrapy': ['settings = crawler.settings']},
)
"""
PACKAGES = ("crawler", "spiders", "pipelines", "schedules")


@pytest.fixture(scope="module")
def egg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("egg")
    for name in (*PACKAGES, "tests/site"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    (folder / "tests" / "__init__.py").write_text("")
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "setup.py").write_text(SETUP)
    packing = [sys.executable, "-W", "ignore", "setup.py", "-q", "bdist_egg", "-d", "dist"]
    subprocess.run(packing, cwd=folder, check=True, capture_output=True)
    (made,) = (folder / "dist").glob("*.egg")
    return made


def python(egg: Path, folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python in an empty folder, with the egg first on the path."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(HIDDEN) and name.lower() not in PROXIES
    }
    scrapyd_env = {"PYTHONPATH": str(egg), "SCRAPY_SETTINGS_MODULE": "crawler.settings"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=inherited | scrapyd_env | env,
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_egg_includes_data_files_and_excludes_tests(egg: Path) -> None:
    packed = set(ZipFile(egg).namelist())
    data_files = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__"
    }
    assert any(name.endswith(".lua") for name in data_files)
    assert data_files <= packed
    assert {name.split("/")[0] for name in packed} == {*PACKAGES, "EGG-INFO"}
    assert b"settings = crawler.settings" in ZipFile(egg).read("EGG-INFO/entry_points.txt")


@pytest.mark.soak
def test_lua_scripts_and_kernels_load_from_egg(egg: Path, tmp_path: Path) -> None:
    code = """
from crawler.frontier import redis_queue
from crawler.frontier.redis_queue import SCRIPTS
from schedules.compiled import _stamp_of
assert ".egg" in redis_queue.__file__
assert (SCRIPTS / "join.lua").read_text()
print(_stamp_of("schedules.allocation.optimal") != _stamp_of("crawler.dedup.minhash"))
"""
    done = python(egg, tmp_path, "-c", code)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.soak
def test_crawl_from_egg_works_as_under_scrapyd(
    egg: Path, freshet: Freshet, database: Db, pages: Pages, tmp_path: Path
) -> None:
    pages.list("list.html", ["/item-a.html", "/item-b.html"])
    pages.item("item-a.html", "A")
    pages.item("item-b.html", "B")
    wrapper = freshet.wrapper("shop", start_urls=[f"{pages.url}/list.html"], item_pages="/item-")
    words = ("-m", "scrapy", "crawl", "site", "-a", f"wrapper={wrapper}", "-a", "_job=6487ec79")
    done = python(egg, tmp_path, *words, **freshet.env)
    assert done.returncode == 0, done.stderr
    assert outcomes(database) == {"new": 3}
