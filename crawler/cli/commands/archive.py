"""`scrapy archive`: list, check and export the archives of sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions, JsonTypes


class Command(ActionsCommand):
    """List, check and export the responses that sites with `archive = true` keep."""

    summary = "List, check and export archived responses"
    example = "scrapy archive list"
    actions: ClassVar[Mapping[str, Action]] = {
        "list": Action("List the files of archives", "scrapy archive list shop"),
        "verify": Action(
            "Check all records of an archive and its indexes", "scrapy archive verify shop"
        ),
        "export": Action(
            "Write an archive to a WACZ file, for replay in a browser",
            "scrapy archive export shop shop.wacz",
        ),
    }
    default_action = "list"

    def functions(self, action: str) -> Functions:
        """Import and return the functions of an action."""
        from crawler.cli import archives

        return {
            "list": (archives.add_name_option, archives.list_files),
            "verify": (archives.add_name, archives.verify),
            "export": (archives.add_name_and_file, archives.export_site),
        }[action]

    def json_types(self) -> JsonTypes:
        """Return the types of the reports."""
        from crawler.cli.archives import ArchiveCheck, ArchiveExport, ArchiveFile

        return {
            "scrapy archive list --json": list[ArchiveFile],
            "scrapy archive verify NAME --json": ArchiveCheck,
            "scrapy archive export NAME FILE --json": ArchiveExport,
        }
