"""The member's half of the protocol."""
