"""The life of a process: how it ends, whom it outlives, and what it writes on a terminal."""
