"""Running Freshet: the service, its metrics, and the checks of `scrapy doctor`.

`service` keeps spiders fresh in one process, by the times in `schedule`; `jobs` finds the spiders,
`options` and `systemd` set the service up. `extensions` are Scrapy's, of every crawl. `metrics` are
of a process and `metrics_database` of the database, for Prometheus. `doctor` runs the checks in
`doctor_servers` and `doctor_sites`, and `findings` prints them. `progress` shows live lines on a
terminal, and `kernels` compiles the planner's at installation.

Nothing here decides when a target is due, or stores visits: plans and sessions do.
"""
