"""Accounts of the web app: users, sessions, API tokens, read changes, the audit list of all writes.

Passwords, session ids and tokens are stored as hashes only, so nobody can sign in with a copy
of the database.
"""
