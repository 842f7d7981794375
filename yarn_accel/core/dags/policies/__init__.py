"""Who plans which task where: one policy a file, one table in `registry`."""
