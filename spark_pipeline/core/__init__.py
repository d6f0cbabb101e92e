"""Arithmetic of ranges, without I/O."""
