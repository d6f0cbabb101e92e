"""A sharded, durable, replayable log of frames."""
