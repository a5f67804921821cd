"""Clean shutdown on signals."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDS = (signal.SIGINT, signal.SIGTERM)
SIGNALLED = 128


@contextmanager
def orderly() -> Iterator[None]:
    """Leave the `with` blocks on SIGINT or SIGTERM, so that the started processes are terminated.

    Only the first signal counts; later ones are ignored during the shutdown.
    """
    former = {number: signal.signal(number, _end) for number in ENDS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    for one in ENDS:
        signal.signal(one, signal.SIG_IGN)
    print(f"Ended by {signal.Signals(number).name}.", file=sys.stderr, flush=True)
    raise SystemExit(SIGNALLED + number)
