"""What happens to a fetched page, in this order: its content, what it means, where it is stored.

`content` brings fields, links and posts into a normal form and hashes them. `feeds` and `changes`
turn a fetch into a visit: outcome, history, next visit; they read the database, but all that is
decided is carried out by `storage`, in one atomic write. `duplicates` makes sketches of the texts
in between. A pipeline never fetches.
"""
