"""Actions of the console: who may act, what can be done, and what was done."""
