"""The other services: which are there, which name is used twice, and which of them is the master."""
