"""The leader's half of the protocol."""
