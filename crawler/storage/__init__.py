"""Storage in MongoDB, and the shared state of several workers in Redis.

`store.Store.open` reaches the database, starting the embedded server if no URI is set
(`embedded`), and migrates it (`schema`). `writer` stores visits in batches and is the only code
that adds targets during a run; `leases` keeps two processes from storing the same visit. Most other
modules are named after a collection, such as `targets`, `feeds`, `cells`, `posts`, `listings`,
`visits`, `plans` and `runs`, and hold all of its queries. `histories`, `due` and `stats` read many
targets as arrays, `paging` reads long lists in parts, `health` checks a whole database, and `dedup`
is the index of near-duplicates.

Only this package imports pymongo. It never fetches a page or decides a schedule.
"""
