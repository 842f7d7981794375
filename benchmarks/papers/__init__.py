"""What five papers did and claim, repeated: each experiment, what it judges, and the report of all."""
