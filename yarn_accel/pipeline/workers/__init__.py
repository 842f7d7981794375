"""Worker processes: who computes, where they run, and what happens when one is lost.

Nothing is imported here: a worker's process begins below this package, and has no use for its owner's side.
"""
