"""Commands for what was published before: logs, groups of consumers, durability services, jobs on Spark."""
