"""The agent of every node: reports the node to the master, and names servers to local mappers."""
