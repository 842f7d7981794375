"""The only input and output of the scheduler: commands, journal, log file, locks, metrics."""
