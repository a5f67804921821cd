"""`scrapy pages`: pages composed of cells, as files or served on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions


class Command(ActionsCommand):
    """Pages of cells: build them, or serve them while they are built."""

    actions: ClassVar[Mapping[str, Action]] = {
        "build": Action(
            "write the pages whose cells or templates changed",
            "scrapy pages build templates --out /srv/www/cells",
        ),
        "serve": Action(
            "show pages on this machine, and build them again as cells change",
            "scrapy pages serve templates --port 8000",
        ),
    }
    example = "scrapy pages build templates --out /srv/www/cells"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Build or serve pages composed of cells"

    def functions(self, action: str) -> Functions:
        """Import the functions of an action."""
        from crawler.cli import pages

        if action == "build":
            return pages.build_options, pages.run_build
        return pages.serve_options, pages.run_serve
