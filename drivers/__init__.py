"""Everything that touches a foreign system.  Loaded through entry points; no other package imports this one by name."""
