"""Backfilling on a machine of equal processors: only their number counts, no node has a name.

`torque-sched simulate --counts` runs it on a log. It starts each job when the papers' definitions of the
policies say so, which makes it the referee of the planner that knows nodes.
"""
