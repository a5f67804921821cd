"""Moves data out of and into Freshet: exports, backups, imports of other tools' watches."""
