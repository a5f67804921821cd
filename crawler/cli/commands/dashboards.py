"""`scrapy dashboards`: dashboards made of cells, as files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions, JsonTypes


class Command(ActionsCommand):
    """Build dashboards; `scrapy web` serves them."""

    actions: ClassVar[Mapping[str, Action]] = {
        "build": Action(
            "Write the dashboards whose cells or templates changed",
            "scrapy dashboards build templates --out /srv/www/cells",
        ),
    }
    example = "scrapy dashboards build templates --out /srv/www/cells"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "Build dashboards made of cells"

    def functions(self, action: str) -> Functions:
        """Import and return the functions of an action."""
        from crawler.cli import dashboards

        return dashboards.build_options, dashboards.run_build

    def json_types(self) -> JsonTypes:
        """Return the type of the result."""
        from crawler.cli.dashboards import BuildReport

        return {"scrapy dashboards build TEMPLATES --json": BuildReport}
