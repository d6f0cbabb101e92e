"""Commands that make the others easier to type."""
