"""Live views: rates over the last minutes, topics, and events as they pass."""
