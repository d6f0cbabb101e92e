"""How a local cache tells its consumers what changed."""
