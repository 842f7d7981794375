"""The ladder: the same job in this process, as local pipes, or on a cluster."""
