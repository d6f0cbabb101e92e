"""From a write to the bus: checked, committed, published after the commit, swept when a writer died."""
