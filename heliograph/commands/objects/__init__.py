"""Commands that read and write objects in a database, and follow them."""
