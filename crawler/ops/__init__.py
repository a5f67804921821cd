"""`scrapy refresh`: the service that keeps all spiders fresh by their plans, without cron."""
