"""A module of spiders that cannot be imported is one line with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy.settings import Settings

from crawler.errors import ConfigError
from spiders.site import Loader


@pytest.mark.parametrize(
    ("text", "line", "error"),
    [
        ("\nclass Bad nameSpider:\n", 2, "SyntaxError: invalid syntax. Correct the file"),
        ("x = 1\ny = text('h1')\n", 2, "NameError: name 'text' is not defined"),
        ("import no_such_module\n", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError: "),
    ],
)
def test_error_names_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, error: str
) -> None:
    package = tmp_path / f"broken_{error.partition(':')[0].lower()}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "shop.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        Loader(Settings({"SPIDER_MODULES": [package.name]}))
    message = str(caught.value)
    assert message.startswith(f"{package / 'shop.py'}, line {line}: {error}")
    assert "\n" not in message
