"""What a service keeps on disk."""
