"""The worker's side: the publisher that a forked worker uses, and its connection to the service."""
