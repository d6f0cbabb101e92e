"""Proving that a local cache is equal to its database, and repairing it where it is not."""
