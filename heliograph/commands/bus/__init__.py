"""Commands that send, receive and show events, and list the drivers that carry them."""
