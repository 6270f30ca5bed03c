"""The steps of the graph. Each may be killed and run again: it writes what it found and returns what it changed."""
