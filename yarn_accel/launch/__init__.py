"""Starts, operates and stops the application on a cluster, and runs what its containers start with."""
