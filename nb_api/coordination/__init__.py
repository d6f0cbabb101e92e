"""What processes agree on through the database: elections, discovery, limits."""
