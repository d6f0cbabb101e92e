"""The protocol between workers and the publisher service, without I/O: messages, and what each side does."""
