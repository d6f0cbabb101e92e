"""Samples: how they are kept, packed, compared and expired."""
