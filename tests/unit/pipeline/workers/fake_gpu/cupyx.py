"""What of it a worker imports."""
