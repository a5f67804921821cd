"""Running Freshet: the service, its metrics, and the checks of `scrapy doctor`.

`service` is the loop of `scrapy refresh run`. `schedule` decides when the service runs a crawl, a
replan or a prune, and fills in the systemd units; `jobs` finds the spiders to run. `extensions` has
Scrapy extensions that every crawl loads. `metrics` exports the Prometheus metrics of a process.
`doctor` runs its checks and those of `doctor_servers`; `findings` formats the results.
`reread` extracts archived responses again. `cron_mail` prints the errors that cron mails.
`kernels` compiles the numba kernels during installation.

This package neither decides when a target is due (`schedules`) nor stores visits
(`crawler.frontier`).
"""
