"""The settings of scrapy-redis's README."""

import os

BOT_NAME = "plainredis"
SPIDER_MODULES = ["tests.bench.plainredis.spiders"]

SCHEDULER = "scrapy_redis.scheduler.Scheduler"
DUPEFILTER_CLASS = "scrapy_redis.dupefilter.RFPDupeFilter"
SCHEDULER_PERSIST = True
REDIS_URL = os.environ["REDIS_URL"]
MONGO_URI = os.environ.get("MONGO_URI")
ITEM_PIPELINES = (
    {"tests.bench.plainredis.pipelines.Mongo": 300}
    if MONGO_URI
    else {"scrapy_redis.pipelines.RedisPipeline": 300}
)

# Fix for the benchmark: without it, a RedisSpider waits forever. Must be longer than the five
# seconds for which Scrapy lets an idle spider wait.
MAX_IDLE_TIME_BEFORE_CLOSE = 12
# Scrapy 2.19 would open a control port for each crawl.
REMOTE_CONTROL_ENABLED = False
