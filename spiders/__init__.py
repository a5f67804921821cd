"""One file a site; each describes where pages are and what an item holds."""
