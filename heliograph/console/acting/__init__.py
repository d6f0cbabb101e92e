"""Actions of the console: the admin token, the actions, and the record of what was done."""
