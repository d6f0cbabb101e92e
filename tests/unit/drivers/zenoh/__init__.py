"""The parts of the Zenoh driver that need no Zenoh."""
