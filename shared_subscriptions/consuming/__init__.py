"""A member: the subscriber, its threads, and its connections to leaders."""
