"""The subscriber: from frames that a driver received to the program's callback."""
