"""The console: a page that shows how publishers, controllers, groups, durability services and the log are."""
