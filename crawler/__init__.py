"""Freshet: keeps a local copy of chosen sites fresh for few requests."""

__version__ = "0.1.0"
