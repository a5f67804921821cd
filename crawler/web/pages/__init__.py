"""Pages that show cells: `scrapy pages build` writes them, `scrapy pages serve` keeps them current.

`sources` finds templates and files; `render` makes one page, and notes the cells that it shows;
`build` compares these with the last build and writes what has changed; `serve` does so every second
and serves the folder. `options` are those of both commands.

A page that fails keeps its last version, and no page fails another. Nothing outside of the output
folder is written.
"""
