"""The long-poll protocol without I/O."""
