"""Add Freshet's pipelines, middlewares, extensions and politeness settings to Scrapy."""

from __future__ import annotations

from typing import Any

from scrapy.settings import Settings, get_settings_priority

from crawler import __version__
from crawler.config import Config
from crawler.utils.terminal import guard_logs

COMPONENTS: dict[str, dict[Any, int | None]] = {
    "ITEM_PIPELINES": {
        "pipelines.content.ContentPipeline": 100,
        "pipelines.feed_posts.FeedsPipeline": 150,
        "pipelines.change_detection.ChangesPipeline": 200,
        "pipelines.storage.DuplicatesPipeline": 300,
        "pipelines.storage.StoragePipeline": 900,
    },
    "DOWNLOADER_MIDDLEWARES": {
        # Before every middleware that reads headers or adds default headers.
        "crawler.fetch.credentials.CredentialsMiddleware": 50,
        "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware": None,
        "crawler.fetch.robots.RobotsMiddleware": 100,
        "scrapy.downloadermiddlewares.httpcompression.HttpCompressionMiddleware": None,
        "crawler.fetch.large_bodies.UnpackingMiddleware": 590,
        "scrapy.downloadermiddlewares.redirect.MetaRefreshMiddleware": None,
        "crawler.fetch.redirects.MetaRefreshMiddleware": 580,
        "scrapy.downloadermiddlewares.redirect.RedirectMiddleware": None,
        "crawler.fetch.redirects.RedirectMiddleware": 600,
        "scrapy.downloadermiddlewares.cookies.CookiesMiddleware": None,
        "crawler.fetch.credentials.FewCookiesMiddleware": 700,
        # Closer to the network than Scrapy's retries (550) and redirects (600), so that retried
        # and redirected requests are counted and delayed like any other request.
        "crawler.fetch.downloader.ConditionalGetMiddleware": 650,
        # Before Scrapy's proxy middleware (750), which moves the password from the URL to a header.
        "crawler.fetch.downloader.WrapperProxyMiddleware": 740,
        "crawler.fetch.downloader.PolitenessMiddleware": 950,
    },
    "EXTENSIONS": {
        "scrapy.extensions.throttle.AutoThrottle": None,
        "crawler.ops.extensions.AutoThrottle": 0,
        "crawler.ops.extensions.Garbage": 10,
        "crawler.frontier.summary.Summary": 20,
        "crawler.ops.extensions.Progress": 30,
        "crawler.ops.extensions.GracePeriod": 40,
        "crawler.ops.extensions.Metrics": 50,
        "crawler.ops.extensions.FreeSpace": 60,
    },
}
DOWNLOADER = "crawler.fetch.downloader.Downloader"
# Scrapy imports an extension before it checks whether the extension is enabled, even one that is
# None in EXTENSIONS. Importing these two takes 0.2 s (aiohttp, Twisted's terminal support).
SLOW_EXTENSIONS = {
    "REMOTE_CONTROL_ENABLED": "scrapy.extensions.remote_control.RemoteControl",
    "TELNETCONSOLE_ENABLED": "scrapy.extensions.telnet.TelnetConsole",
}
# Keyed by URL scheme; the values are classes, not positions.
HANDLERS: dict[str, dict[Any, Any]] = {
    "DOWNLOAD_HANDLERS": {
        "http": "crawler.fetch.handler.HttpHandler",
        "https": "crawler.fetch.handler.HttpHandler",
        "sql": "crawler.fetch.handler.SqlHandler",
    },
}


class FreshetAddon:
    """Configure Scrapy for Freshet; settings.py and `-s` override everything set here."""

    def update_settings(self, settings: Settings) -> None:
        """Add Freshet's components and politeness settings; escape control characters in logs."""
        guard_logs()
        for name, components in (COMPONENTS | HANDLERS).items():
            # At add-on priority, settings.set() would be ignored if settings.py has components.
            priority = max(settings.getpriority(name) or 0, get_settings_priority("addon"))
            settings.set(name, components | settings.getdict(name), priority=priority)
        disabled = {path for name, path in SLOW_EXTENSIONS.items() if not settings.getbool(name)}
        base = settings.getdict("EXTENSIONS_BASE")
        enabled = {path: order for path, order in base.items() if path not in disabled}
        settings.set("EXTENSIONS_BASE", enabled, priority="addon")
        settings.set("DOWNLOADER", DOWNLOADER, priority="addon")
        for name, value in politeness_settings(Config.of(settings)).items():
            settings.set(name, value, priority="addon")


def politeness_settings(config: Config) -> dict[str, Any]:
    """Return the Scrapy settings for politeness that follow from Freshet's configuration."""
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
        # Without 429: a host that sends it without Retry-After is not retried in the same run.
        "RETRY_HTTP_CODES": [500, 502, 503, 504, 522, 524, 408],
        # Freshet logs each failed page itself.
        "RETRY_GIVE_UP_LOG_LEVEL": "DEBUG",
        # Freshet limits the length of URLs where links are extracted, and logs it there.
        "URLLENGTH_LIMIT": 0,
        # Scrapy's default sends whole URLs, with any keys in their queries, to other hosts.
        "REFERRER_POLICY": "same-origin",
    }
