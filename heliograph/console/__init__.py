"""The console: web pages with the state of publishers, controllers, groups, durability services and the log."""
