"""Freshet keeps local copies of websites and feeds fresh with few requests."""

__version__ = "0.1.0"
