"""What `heliograph log` does: reading a log, and moving events between it and files."""
