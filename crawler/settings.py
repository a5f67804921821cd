"""Scrapy settings. Freshet's own settings (FRESHET_*) and defaults are in crawler/config.py."""

import os
import sys
from pathlib import Path

from crawler.utils.process import report_interrupts, spare_loading

spare_loading()
# Before the slow imports, during which users press Ctrl-C, too.
report_interrupts()

from crawler.config import Config, unknown_variables  # noqa: E402
from crawler.errors import ConfigError, suggestion  # noqa: E402
from crawler.utils.terminal import print_line  # noqa: E402


def refuse_misspelled_command(program: str, words: list[str]) -> None:
    """End `scrapy WORDS` with exit code 2 and a suggestion if its command is misspelled.

    Scrapy would print only that the command is unknown, and has no setting for this.
    """
    name = next((word for word in words if not word.startswith("-")), None)
    own = {path.stem for path in Path(__file__).with_name("cli").glob("commands/[a-z]*.py")}
    if name is None or name in own or Path(program).name not in ("scrapy", "__main__.py"):
        return
    from importlib.metadata import entry_points
    from pkgutil import iter_modules

    # Not `import scrapy.commands`: Scrapy may still be importing this package.
    from scrapy.commands import __path__ as places

    of_scrapy = {module.name for module in iter_modules(places)}
    names = own | of_scrapy | entry_points(group="scrapy.commands").names
    if name not in names and (near := suggestion(name, names)):
        print_line(f"scrapy: unknown command: {name!r}{near}", error=True)
        raise SystemExit(2)


refuse_misspelled_command(sys.argv[0], sys.argv[1:])
# numpy's linear algebra library starts threads when it is loaded. They busy-wait at first, which
# slows down each command by 50 ms. Freshet multiplies no large matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# `scrapy doctor` reports invalid and unknown settings with its other findings.
if sys.argv[1:2] != ["doctor"]:
    try:
        Config.load()
        for unknown in unknown_variables():
            where = unknown.place or "the environment"
            message = f"{unknown.name} in {where} is not a setting and has no effect"
            print_line(f"scrapy: warning: {message}; {unknown.hint}", error=True)
    except ConfigError as error:
        raise SystemExit(f"scrapy: {error}") from None

BOT_NAME = "freshet"
SPIDER_MODULES = ["spiders"]
NEWSPIDER_MODULE = "spiders"
SPIDER_LOADER_CLASS = "spiders.site.Loader"
COMMANDS_MODULE = "crawler.cli.commands"
ADDONS = {"crawler.addon.FreshetAddon": 100}

# Scrapy 2.19 would open a control port for each crawl.
REMOTE_CONTROL_ENABLED = False
TELNETCONSOLE_ENABLED = False
FEED_EXPORT_ENCODING = "utf-8"
FEED_EXPORTERS = {"csv": "crawler.utils.files.SafeCsvExporter"}
LOG_LEVEL = "INFO"
