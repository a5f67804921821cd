"""`scrapy dashboards`: dashboards made of cells, as files or served on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions, JsonTypes


class Command(ActionsCommand):
    """Build dashboards, or serve them and rebuild them when cells change."""

    actions: ClassVar[Mapping[str, Action]] = {
        "build": Action(
            "Write the dashboards whose cells or templates changed",
            "scrapy dashboards build templates --out /srv/www/cells",
        ),
        "serve": Action(
            "Serve dashboards on this machine, and rebuild them when cells change",
            "scrapy dashboards serve templates --port 8000",
        ),
    }
    example = "scrapy dashboards build templates --out /srv/www/cells"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "Build or serve dashboards made of cells"

    def functions(self, action: str) -> Functions:
        """Import and return the functions of an action."""
        from crawler.cli import dashboards

        if action == "build":
            return dashboards.build_options, dashboards.run_build
        return dashboards.serve_options, dashboards.run_serve

    def json_types(self) -> JsonTypes:
        """Return the types of the results."""
        from crawler.cli.dashboards import BuildReport
        from crawler.web.dashboards.serve import ServingReport

        return {
            "scrapy dashboards build TEMPLATES --json": BuildReport,
            "scrapy dashboards serve TEMPLATES --for 1h --json": ServingReport,
        }
