"""The only code that talks to MongoDB: one module a collection, one writer, the embedded server."""
