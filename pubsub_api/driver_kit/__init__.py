"""What every driver of the bus needs besides the contract: counters, a guarded receiver, a bounded queue."""
