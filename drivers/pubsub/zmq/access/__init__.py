"""Access to a ZeroMQ publisher: which peers may connect, and how much memory each may cost."""
