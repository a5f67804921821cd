"""Draw the pictures of README and the tutorials: `make pictures` writes docs/pictures/*.svg.

The script runs the commands of the tutorials in a temporary project folder with a database of its
own, and records their output. The site is that of `make site`, in simulated time. It takes two
minutes or more. Visits take real seconds, so the last digits of estimates differ from run to run.
data-flow.svg is drawn by hand and is not changed.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.site.clock import FileClock  # noqa: E402 - needs the path above
from tests.site.running import RunningSite  # noqa: E402
from tests.site.tutorial import ADDRESS, Front  # noqa: E402
from tests.site.world import START  # noqa: E402

PICTURES = ROOT / "docs/pictures"
SITE_DEFINITION = ROOT / "docs/tutorial/first-site.md"
BENCHMARKS = ROOT / "docs/benchmarks.md"
COLUMNS = 100
MAX_LINES = 30
PORT = 8029
ITEM = f"{ADDRESS}/item/1"
DAY, WEEK = timedelta(days=1), timedelta(weeks=1)
NOON = START + timedelta(hours=12)
# Pauses between requests would only make the script slow.
PROJECT_SETTINGS = "from crawler.settings import *\n\nAUTOTHROTTLE_ENABLED = False\n"
OPML = '<opml version="2.0"><body><outline xmlUrl="{}/feed"/></body></opml>'
HIDDEN = ("FRESHET_", "MONGO_URI", "REDIS_URL", "SCRAPY_", "NO_COLOR")
# The ids in charts are the same in each run; text stays text, which is smaller.
MATPLOTLIB = """
svg.hashsalt: freshet
svg.fonttype: none
savefig.dpi: 50
font.sans-serif: DejaVu Sans, Verdana
"""

WEEKS = 4
FIRST_CRAWL = "scrapy crawl site -a wrapper=shop.toml"
CHECK = f"scrapy wrapper check shop.toml {ITEM} {ADDRESS}/category/garden/"
DIFF = f"scrapy history {ITEM} --diff"
# Each terminal picture: its name, the simulated time, and the commands as the tutorials print them,
# which `tests/unit/cli/test_docs.py` checks.
RECORDINGS: tuple[tuple[str, timedelta, tuple[str, ...]], ...] = (
    ("check", timedelta(), (CHECK,)),
    ("crawl", timedelta(), (FIRST_CRAWL, "scrapy crawl shop")),
    ("feeds", timedelta(), ("scrapy feeds import feeds.opml", "scrapy crawl feeds -o new.jsonl")),
    ("changes", WEEK, ("scrapy changes shop --since 2d --limit 6", DIFF)),
    ("replan", WEEK, ("scrapy replan --kind pages --budget 100/day --dry-run",)),
    ("explain", WEEKS * WEEK, (f"scrapy explain {ITEM}",)),
    ("feeds-list", WEEKS * WEEK, ("scrapy feeds list",)),
    ("search", WEEKS * WEEK, ("scrapy search mossy heron --since 7d --limit 3",)),
)
CHARTS = {
    "week": "scrapy plan shop --calendar week.svg",
    "simulate": "scrapy simulate pages --history shop --policy optimal --policy uniform "
    "--budget 25 --budget 50 --budget 100 --budget 190 --plot simulate.svg",
}
# Rows of the benchmark table: Freshet's own, and others by a part of their names, with the label
# and its offset in points. Without the offsets, labels of close points would overlap.
OWN_NAMES = {"Freshet", "optimal"}
COMPARED = {
    "every page daily": ("every page daily", -8, -3),
    "Cho and Garcia-Molina": ("intervals for freshness (Cho and Garcia-Molina)", 8, -3),
    "equal interval": ("an equal interval for all pages", 8, 0),
    "refresh-cycle": ("classes of the refresh-cycle paper", 8, -11),
}
# rich's own template loads a font from another host.
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" \
xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; \
font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" \
clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Recorder:
    """A temporary project folder in which commands run and are recorded."""

    def __init__(self, folder: Path, site: RunningSite, address: str) -> None:
        self.folder, self.site, self.address = folder, site, address
        (definition,) = re.findall(
            r'^```toml\n(name = "shop".*?)^```', SITE_DEFINITION.read_text(), re.M | re.S
        )
        files = {
            "scrapy.cfg": "[settings]\ndefault = project_settings\n",
            "project_settings.py": PROJECT_SETTINGS,
            "matplotlibrc": MATPLOTLIB,
            "shop.toml": self.local(definition),
            "feeds.opml": OPML.format(address),
        }
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")

    def local(self, text: str) -> str:
        """Return a text with the address that is up instead of that of `make site`."""
        return text.replace(ADDRESS, self.address)

    def public(self, text: str) -> str:
        """Return an output with the address of `make site` instead of the one that is up."""
        hosts = (each.removeprefix("http://") for each in (self.address, ADDRESS))
        return text.replace(*hosts).replace(str(self.folder), "~/freshet")

    def environment(self, now: datetime) -> dict[str, str]:
        """Return the variables of a command at a simulated time."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
        return kept | {
            "PYTHONPATH": f"{self.folder}:{ROOT}",
            "SCRAPY_SETTINGS_MODULE": "project_settings",
            "FRESHET_DATA_DIR": str(self.folder / "data"),
            "FRESHET_CLOCK_OFFSET_HOURS": str((now - datetime.now(UTC)) / timedelta(hours=1)),
            "FRESHET_PROGRESS": "0",  # a live line cannot be recorded
            "FRESHET_THROTTLE_START_SECONDS": "0",
            "MPLCONFIGDIR": str(self.folder),
            "SOURCE_DATE_EPOCH": "0",
            "TERM": "xterm-256color",
            "COLUMNS": str(COLUMNS),
            "TZ": "UTC",
        }

    def run(self, command: str, now: datetime) -> str:
        """Run a command line and return what it prints; raises CalledProcessError."""
        self.set_clock(now)
        words = [self.local(word) for word in shlex.split(command)[1:]]
        # Freshet prints what a user sees only to a terminal; a pipe gets the whole log.
        terminal, inner = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "scrapy", *words], cwd=self.folder,
            env=self.environment(now), stdin=subprocess.DEVNULL, stdout=inner, stderr=inner,
        )  # fmt: skip
        os.close(inner)
        output = b""
        # Linux reports the end of a terminal as an error.
        with suppress(OSError):
            while part := os.read(terminal, 65536):
                output += part
        os.close(terminal)
        process.wait()
        text = output.decode().replace("\r\n", "\n")
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, text)
        return self.public(text)

    def set_clock(self, now: datetime) -> None:
        """Set the clock of the sites."""
        self.site.set_clock(now)

    def visit(self, since: datetime, until: datetime, every: timedelta) -> None:
        """Crawl the shop as cron would."""
        words = (self.site.clock, since.isoformat(), until.isoformat(), every / timedelta(hours=1))
        command = [sys.executable, "-m", "tests.site.runs", *map(str, words), "shop",
                   f"wrapper={self.folder}/shop.toml"]  # fmt: skip
        subprocess.run(
            command, cwd=ROOT, check=True, env=self.environment(since), capture_output=True
        )

    def record(self, name: str, commands: Sequence[str], now: datetime) -> None:
        """Run commands and draw the terminal that shows them."""
        console = Console(record=True, width=COLUMNS, file=io.StringIO())
        for number, command in enumerate(commands):
            if number:
                console.print()
            console.print(Text(f"$ {command}", style="bold"), no_wrap=False)
            lines = self.run(command, now).rstrip().splitlines()
            for line in lines[:MAX_LINES]:
                console.print(Text.from_ansi(line.rstrip()), soft_wrap=False, no_wrap=False)
            if len(lines) > MAX_LINES:
                console.print(Text("…", style="dim"))
        svg = console.export_svg(title="", theme=MONOKAI, code_format=SVG, unique_id=name)
        write(name, svg)


def write(name: str, svg: str) -> None:
    """Write a picture; spaces at the ends of lines are left out."""
    text = "\n".join(line.rstrip() for line in svg.strip().splitlines()) + "\n"
    (PICTURES / f"{name}.svg").write_text(text, encoding="utf-8")
    print(f"docs/pictures/{name}.svg  {len(text.encode()) / 1000:.0f} kB")


def small(svg: str) -> str:
    """Return matplotlib's SVG without metadata, indentation and needless digits."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r"\n\s+", "\n", re.sub(r"(\.\d\d)\d+", r"\1", svg))


def freshness_chart(folder: Path) -> str:
    """Return a chart of the table "Planning pages" of the benchmarks."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rc_file(folder / "matplotlibrc")
    from matplotlib import pyplot as plt

    table = BENCHMARKS.read_text(encoding="utf-8").partition("## Planning pages")[2]
    table = re.sub(r"[*`]", "", table.partition("\n## ")[0])
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+) \| (0\.\d+) \|", table, re.M)
    points = [(name, float(requests), float(freshness)) for name, requests, freshness in rows]
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    own = sorted((x, y) for name, x, y in points if name in OWN_NAMES)
    axes.plot(*zip(*own, strict=True), "o-", color="#0072b2", linewidth=2)
    axes.annotate("Freshet", own[-1], (8, 4), textcoords="offset points", color="#0072b2",
                  weight="bold")  # fmt: skip
    for part, (label, side, shift) in COMPARED.items():
        (point,) = ((x, y) for name, x, y in points if part in name)
        axes.plot(*point, "s", color="#606060")
        axes.annotate(label, point, (side, shift), textcoords="offset points", fontsize=9,
                      ha="left" if side > 0 else "right")  # fmt: skip
    axes.set(xlim=(0, 1000), ylim=(0.76, 0.93), xlabel="requests a day for 916 pages",
             ylabel="freshness: share of time\nin which copy and page agree")  # fmt: skip
    axes.grid(color="#e4e4e4")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "freshness.svg", metadata={"Date": None})
    return (folder / "freshness.svg").read_text(encoding="utf-8")


@contextmanager
def recorder() -> Iterator[Recorder]:
    """Start the sites and a project; stop all at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pictures-")))
        site = stack.enter_context(RunningSite())
        Front.now = FileClock(site.clock, START).now
        # Plans spread visits by their URLs, so the figures depend on the port.
        front = ThreadingHTTPServer(("127.0.0.1", PORT), Front)
        threading.Thread(target=front.serve_forever, daemon=True).start()
        stack.callback(front.shutdown)
        project = Recorder(folder, site, f"http://127.0.0.1:{front.server_port}")
        stack.callback(project.run, "scrapy db stop", NOON)
        yield project


def main() -> int:
    """Draw all pictures; exit code 1 if a command fails."""
    recordings = {name: (after, commands) for name, after, commands in RECORDINGS}

    def record(name: str) -> None:
        after, commands = recordings[name]
        project.record(name, commands, NOON + after + timedelta(minutes=10))

    try:
        with recorder() as project:
            write("freshness", small(freshness_chart(project.folder)))
            record("check")
            record("crawl")
            record("feeds")
            project.visit(NOON + DAY, NOON + WEEK, DAY)
            record("changes")
            record("replan")
            for week in range(1, WEEKS):
                now = NOON + week * WEEK
                project.run("scrapy crawl feeds", now)
                project.run("scrapy replan --kind pages --budget 100/day", now)
                project.visit(now, now + WEEK, timedelta(hours=3))
            end = NOON + WEEKS * WEEK
            record("explain")
            project.run("scrapy crawl feeds", end)
            record("feeds-list")
            record("search")
            for name, command in CHARTS.items():
                project.run(command, end)
                write(name, small((project.folder / f"{name}.svg").read_text(encoding="utf-8")))
    except subprocess.CalledProcessError as error:
        print(error, error.stdout or error.stderr, sep="\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
