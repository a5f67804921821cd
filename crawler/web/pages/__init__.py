"""Pages composed of cells: templates, what is to be built, building, serving."""
