"""Commands that run a service of a host, or ask one how it is."""
