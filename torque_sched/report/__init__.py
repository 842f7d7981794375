"""What people look at: why a job waits, what would happen, how the cluster did. It only reads."""
