"""How a service gets what its peers hold, and gives them what it holds."""
