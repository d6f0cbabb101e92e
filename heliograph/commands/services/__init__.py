"""Commands that run a service, or show the state of services and processes."""
