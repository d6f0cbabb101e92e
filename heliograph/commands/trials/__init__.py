"""Commands that show, check or measure the product itself."""
