"""Bands in Redis or Valkey; nothing else of Freshet talks to it."""
