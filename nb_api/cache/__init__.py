"""A controller's copy of the database: kept equal, told to callbacks, resynced when needed."""
