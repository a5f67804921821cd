"""What a build has to do. Pure: decides, and touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from crawler.pages.cells import Fact
from crawler.pages.record import Built, Record
from crawler.pages.sources import Sources

Facts = Callable[[str], list[Fact]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Paths within the output folder.

    render: pages to make     removed: pages to delete
    copy:   files to copy     dropped: copied files to delete
    """

    render: list[str]
    removed: list[str]
    copy: list[str]
    dropped: list[str]

    @property
    def empty(self) -> bool:
        """There is nothing to do."""
        return not (self.render or self.removed or self.copy or self.dropped)


def planned(
    record: Record, sources: Sources, facts: Facts, present: Set[str], *, retry: bool = True
) -> Plan:
    """Compare what there is with what there was.

    facts:   of the cells of a name, now
    present: which of the paths are in the output folder
    retry:   pages that failed are tried again even if nothing changed since
    """
    anew = record.templates != sources.digest
    known = sources.pages.keys() | sources.files.keys()

    def due(path: str) -> bool:
        built = record.pages.get(path)
        if anew or built is None or _differs(built, facts):
            return True
        return retry if built.failed else path not in present

    return Plan(
        render=[path for path in sources.pages if due(path)],
        removed=sorted(path for path in record.pages if path not in known),
        copy=[
            path
            for path, file in sources.files.items()
            if record.files.get(path) != file.digest or path not in present
        ],
        dropped=sorted(path for path in record.files if path not in known),
    )


def _differs(built: Built, facts: Facts) -> bool:
    return any(facts(name) != found for name, found in built.cells.items())
