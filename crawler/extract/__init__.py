"""Site definitions, and the content that they extract from pages.

`site_definition` holds a site definition as the user writes it, `stored_definition` as the database
stores it.
`fields`, `links`, `cells` and `main_text` read pages; `response` classifies HTTP responses.

Nothing in this package fetches, stores or schedules pages. User-supplied patterns are searched in
linear time, and every value read from a page is bounded in size.
"""
