"""Commands that demonstrate, check or measure the product itself."""
