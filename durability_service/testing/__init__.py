"""Shipped for tests of the durability service, ours and others': the seeded simulator."""
