"""The parts of the ZeroMQ driver that need no libzmq."""
