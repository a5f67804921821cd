"""What a site definition says, and what a page gives by it.

`wrapper` is the definition as the user writes it, `definition` as the database keeps it; `fields`,
`links`, `cells` and `main_text` read a page; `response` decides what an HTTP response means.

Nothing here fetches, stores or decides when a page is visited next. Patterns of users are searched
in linear time, and pages are read up to a bound.
"""
