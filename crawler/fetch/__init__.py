"""Fetch targets: HTTP requests, robots.txt, politeness, limits on responses, SQL queries."""
