"""Feeds: documents read, lists of feeds in and out, what feeds ask of readers. No database."""
