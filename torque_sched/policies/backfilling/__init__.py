"""Backfilling: waiting jobs get start times, and others go ahead of them only where nobody is delayed."""
