"""What a publisher service does for the database: elected upkeep, and watched tables."""
