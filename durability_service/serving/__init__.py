"""The parts of a running service around its core: peers, clients, administration, the watchdog."""
