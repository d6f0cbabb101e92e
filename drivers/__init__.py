"""Everything that touches a foreign system.  Loaded through entry points; no other package imports this one by name.

It is installed, and imported, as ``heliograph_drivers``: a program may have a package called drivers.
"""
