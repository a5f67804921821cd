"""Wires Freshet into Scrapy: pipelines, middlewares, extensions and manners, in their order."""

from __future__ import annotations

from typing import Any

from scrapy.settings import Settings, get_settings_priority

from crawler import __version__
from crawler.config import Config
from crawler.utils.terminal import guard_logs

COMPONENTS: dict[str, dict[Any, int | None]] = {
    "ITEM_PIPELINES": {
        "pipelines.content.ContentPipeline": 100,
        "pipelines.feeds.FeedsPipeline": 150,
        "pipelines.changes.ChangesPipeline": 200,
        "pipelines.duplicates.DuplicatesPipeline": 300,
        "pipelines.storage.StoragePipeline": 900,
    },
    "DOWNLOADER_MIDDLEWARES": {
        # Before everything that reads a request's headers or fills in those that are missing.
        "crawler.fetch.credentials.CredentialsMiddleware": 50,
        "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware": None,
        "crawler.fetch.robots.RobotsMiddleware": 100,
        "scrapy.downloadermiddlewares.httpcompression.HttpCompressionMiddleware": None,
        "crawler.fetch.bodies.UnpackingMiddleware": 590,
        "scrapy.downloadermiddlewares.cookies.CookiesMiddleware": None,
        "crawler.fetch.credentials.FewCookiesMiddleware": 700,
        # Nearer to the network than Scrapy's retries (550) and redirects (600), so that both
        # are counted and wait like any other request.
        "crawler.fetch.middlewares.ConditionalGetMiddleware": 650,
        # Before Scrapy's own proxy middleware (750), which takes the password out of the URL.
        "crawler.fetch.middlewares.WrapperProxyMiddleware": 740,
        "crawler.fetch.middlewares.PolitenessMiddleware": 950,
    },
    "EXTENSIONS": {
        "scrapy.extensions.throttle.AutoThrottle": None,
        "crawler.ops.extensions.AutoThrottle": 0,
        "crawler.ops.extensions.Garbage": 10,
        "crawler.ops.summary.Summary": 20,
        "crawler.ops.extensions.Progress": 30,
        "crawler.ops.extensions.Grace": 40,
        "crawler.ops.extensions.Metrics": 50,
        "crawler.ops.extensions.Room": 60,
    },
}
DOWNLOADER = "crawler.fetch.downloader.Downloader"
# Scrapy imports its extensions before it asks whether they are on. These take 0.2 s (aiohttp,
# Twisted's terminals); a key with None in EXTENSIONS would be imported as well.
SLOW_EXTENSIONS = {
    "REMOTE_CONTROL_ENABLED": "scrapy.extensions.remote_control.RemoteControl",
    "TELNETCONSOLE_ENABLED": "scrapy.extensions.telnet.TelnetConsole",
}
# By scheme, not by order.
HANDLERS: dict[str, dict[Any, Any]] = {
    "DOWNLOAD_HANDLERS": {
        "http": "crawler.fetch.handler.HttpHandler",
        "https": "crawler.fetch.handler.HttpHandler",
        "sql": "crawler.fetch.handler.SqlHandler",
    },
}


class FreshetAddon:
    """Scrapy add-on; everything it sets can be overridden in settings.py or with `-s`."""

    def update_settings(self, settings: Settings) -> None:
        """Add Freshet's components and the manners that the config asks for; guard the log."""
        guard_logs()
        for name, components in (COMPONENTS | HANDLERS).items():
            # A plain set at add-on priority would lose against a user's own components.
            priority = max(settings.getpriority(name) or 0, get_settings_priority("addon"))
            settings.set(name, components | settings.getdict(name), priority=priority)
        off = {one for name, one in SLOW_EXTENSIONS.items() if not settings.getbool(name)}
        usual = settings.getdict("EXTENSIONS_BASE")
        on = {name: order for name, order in usual.items() if name not in off}
        settings.set("EXTENSIONS_BASE", on, priority="addon")
        settings.set("DOWNLOADER", DOWNLOADER, priority="addon")
        for name, value in manners(Config.of(settings)).items():
            settings.set(name, value, priority="addon")


def manners(config: Config) -> dict[str, Any]:
    """Scrapy's settings for what the config says about manners."""
    contact = f" (+{config.contact})" if config.contact else ""
    return {
        "USER_AGENT": f"Freshet/{__version__}{contact}",
        "ROBOTSTXT_OBEY": True,
        "AUTOTHROTTLE_ENABLED": True,
        "AUTOTHROTTLE_START_DELAY": config.throttle_start_seconds,
        "AUTOTHROTTLE_TARGET_CONCURRENCY": config.throttle_concurrency,
        "DOWNLOAD_DELAY": 0,
        "DOWNLOAD_TIMEOUT": config.response_seconds,
        "DOWNLOAD_MAXSIZE": int(config.response_mb * 1024 * 1024),
        "DOWNLOAD_WARNSIZE": 0,
        "DOWNLOAD_VERIFY_CERTIFICATES": True,
        # A 429 without Retry-After is not asked again in the same pass.
        "RETRY_HTTP_CODES": [500, 502, 503, 504, 522, 524, 408],
        # Each page that cannot be read has a line of its own in the log.
        "RETRY_GIVE_UP_LOG_LEVEL": "DEBUG",
        # The length of URLs is limited where they are found, and said there.
        "URLLENGTH_LIMIT": 0,
        # Scrapy's own would send whole URLs, with the keys in their queries, to other hosts.
        "REFERRER_POLICY": "same-origin",
    }
