"""From changes of a local cache to the work they cause: calls of a function, key by key, until it has succeeded."""
