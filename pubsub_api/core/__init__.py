"""The bus without I/O: numbers, order, repair, resync and the wire format.  Every call is given the time."""
