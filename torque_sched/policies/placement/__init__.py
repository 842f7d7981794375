"""Where a job runs best: one rule per module, all answering `policies.base.Placement`."""
