"""Print the end of cron's log, which cron mails, unless the same error was printed today.

`scrapy cron` prints crontab lines that end with `|| python -m crawler.ops.cron_mail LOG`. Otherwise
a site that is down all day would be mailed every ten minutes.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from crawler.utils.terminal import print_line

# Less than a day, or a nightly job that fails a second earlier than yesterday is not mailed.
REPEAT_SECONDS = 23 * 3600.0
# The error, and usually an example before it.
LAST_LINES = 2
MAX_BYTES = 64 * 1024
# Folder next to the log, with an empty file for each error mailed in the last REPEAT_SECONDS.
FOLDER = "cron-mails"
# Parts that differ between two reports of an error: URLs, times, and counts with their nouns.
VARYING = re.compile(r"https?://\S+|\d\S*(?: \w+)?")


def new_error(log: Path, now: float) -> str | None:
    """Return the last lines of the log; None if their error was returned less than a day ago.

    now: in seconds since the epoch
    """
    try:
        with log.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - MAX_BYTES, 0))
            lines = file.read(MAX_BYTES).decode(errors="replace").splitlines()
    except OSError:
        # The shell could not open the log either, and has reported that.
        return None
    if not lines:
        return None
    error = VARYING.sub("", lines[-1])
    marker = log.parent / FOLDER / sha256(error.encode()).hexdigest()[:16]
    # If the folder cannot be written, one mail too many is better than none.
    with suppress(OSError):
        marker.parent.mkdir(exist_ok=True)
        for other in marker.parent.iterdir():
            # A job at the same time may have removed it.
            with suppress(FileNotFoundError):
                # A time in the future was set before the clock was corrected.
                if not 0 <= now - other.stat().st_mtime < REPEAT_SECONDS:
                    other.unlink()
        if marker.exists():
            return None
        marker.touch()
        os.utime(marker, (now, now))
    return "\n".join(lines[-LAST_LINES:])


if __name__ == "__main__":
    if (text := new_error(Path(sys.argv[1]), time.time())) is not None:
        print_line(text)
