"""What OpenPBS prints, as values of the model; pure."""
