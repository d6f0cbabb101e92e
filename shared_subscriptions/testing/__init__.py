"""What is shipped for tests of groups: the simulator of their protocol.  Nothing is imported here."""
