"""Who may connect to a ZeroMQ publisher, and how much each may cost."""
