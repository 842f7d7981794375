"""Everything the echo benchmark compares: each module serves an echo and has a client for it."""
