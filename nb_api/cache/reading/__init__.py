"""Where a local cache hears of changes, and how it reads the database."""
