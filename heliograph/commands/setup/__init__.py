"""Commands that make other commands easier to type."""
