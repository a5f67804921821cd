"""What happens to a fetched page: content, changes, storage. A pipeline never fetches."""
