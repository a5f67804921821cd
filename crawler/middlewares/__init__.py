"""Downloader middlewares: conditional requests, and manners towards each host."""
