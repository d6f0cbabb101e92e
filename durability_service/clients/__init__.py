"""Clients, for programs that run no service: questions to services, history for subscribers, a resync source."""
