"""One name-space in one service: its set, the states of its life, its epochs, and what is stored of it."""
