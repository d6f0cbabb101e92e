"""Commands for past events: logs, groups of consumers, durability services, jobs on Spark."""
