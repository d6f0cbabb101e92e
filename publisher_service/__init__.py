"""One publisher per host for the many workers of that host: the service, and the workers' side."""
