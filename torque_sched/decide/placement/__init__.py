"""Where a job runs best: one rule per module, all answering `decide.search.Placement`."""
