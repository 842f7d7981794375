"""Links the schedulers of several Torque sites: a job runs elsewhere, or as blocks at several sites at once.

No site rules another. Each keeps its queue and its policy, says itself what it takes from whom, and talks
only to the peers its own settings name. See `torque-sched site --help`.
"""
