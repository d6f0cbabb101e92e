"""What a command does on a terminal besides printing results: questions, progress, counters that go on."""
