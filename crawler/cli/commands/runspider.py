"""`scrapy runspider`: Scrapy's command, with the checks and exit codes of `scrapy crawl`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, ClassVar

from scrapy import Spider
from scrapy.commands import runspider
from scrapy.utils.spider import iter_spider_classes

from crawler.cli.commands import crawl
from crawler.errors import ConfigError


class Command(crawl.Command):
    """Run a spider that is defined in a file."""

    name = "runspider"
    default_settings: ClassVar[dict[str, Any]] = runspider.Command.default_settings

    def syntax(self) -> str:
        """Return the part of the usage line after the command's name."""
        return "[options] <spider_file>"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "Run a spider from a Python file"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add Scrapy's options and an example."""
        super().add_options(parser)
        parser.epilog = "Example: scrapy runspider shop.py -o items.jsonl"

    def _spider(self, name: str) -> type[Spider]:
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"file not found: {name!r}")
        try:
            spiders = list(iter_spider_classes(runspider._import_file(path)))
        except (ImportError, SyntaxError, ValueError) as error:
            raise ConfigError(f"{name}: cannot be loaded: {error}") from None
        if not spiders:
            raise ConfigError(f"{name}: no spider in this file. Define a spider class with a name")
        return spiders[-1]
