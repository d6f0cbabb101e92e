"""Database change notifications: objects with versions in a database, and everyone who follows them."""
