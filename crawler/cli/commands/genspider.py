"""`scrapy genspider`: Scrapy's command, with Freshet's templates in addition to Scrapy's."""

from __future__ import annotations

import argparse
from pathlib import Path

from scrapy.commands import genspider

from crawler.cli.base import Help
from crawler.utils.terminal import print_line

TEMPLATES = Path(__file__).resolve().parent.parent / "templates" / "spiders"


class Command(genspider.Command):
    """Generate a spider from a template; `-t wrapper` writes a commented site definition."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add Scrapy's options and an example."""
        super().add_options(parser)
        parser.formatter_class = Help
        parser.epilog = "Example: scrapy genspider -t wrapper shop shop.example"

    def _find_template(self, template: str) -> Path | None:
        template_path = TEMPLATES / f"{template}.tmpl"
        return template_path if template_path.exists() else super()._find_template(template)

    def _list_templates(self) -> None:
        super()._list_templates()
        for path in sorted(TEMPLATES.glob("*.tmpl")):
            print_line(f"  {path.stem}")
