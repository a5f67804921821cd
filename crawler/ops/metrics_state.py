"""Whether this process is measured. Light, as every crawl asks and most are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from crawler.ops.metrics import Measuring


class Process:
    """The one that runs. measuring: of all its passes; None: nobody wants to know."""

    measuring: ClassVar[Measuring | None] = None
