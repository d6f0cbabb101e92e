"""The publisher: from a program's call to frames handed to a driver."""
