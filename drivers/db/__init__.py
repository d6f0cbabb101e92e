"""Drivers of databases: each implements `nb_api.db_api.DbApi`."""
