"""Scrapy settings. Freshet's own settings (FRESHET_*) and defaults are in crawler/config.py."""

import os
import sys

from crawler.utils.process import report_interrupts, spare_loading

spare_loading()
# Before the slow imports, during which users press Ctrl-C, too.
report_interrupts()

from crawler.config import Config, unknown_variables  # noqa: E402
from crawler.errors import ConfigError  # noqa: E402
from crawler.utils.terminal import print_line  # noqa: E402

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
