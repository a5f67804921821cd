"""Websub."""
