"""`scrapy pages`: pages composed of cells, as files or served on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand


class Command(ActionsCommand):
    """One action of the table, with options of its own."""

    actions: ClassVar[Mapping[str, Action]] = {
        "build": Action(
            "write the pages whose cells or templates changed",
            "scrapy pages build templates --out /srv/www/cells",
            "crawler.cli.pages",
            "run_build",
            "build_options",
        ),
        "serve": Action(
            "show pages on this machine, and build them again as cells change",
            "scrapy pages serve templates --port 8000",
            "crawler.cli.pages",
            "run_serve",
            "serve_options",
        ),
    }
    example = "scrapy pages build templates --out /srv/www/cells"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Build or serve pages composed of cells"
