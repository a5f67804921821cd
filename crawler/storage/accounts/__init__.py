"""Accounts of the web app: users, sessions, API tokens, read changes, the audit list of all writes.

Passwords, session ids and tokens are stored as hashes only, so a copy of the database does not let
anybody sign in.
"""
