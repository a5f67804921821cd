"""Between spider and network: conditional requests, manners towards each host, queries."""
