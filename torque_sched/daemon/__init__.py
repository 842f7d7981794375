"""The daemon that takes pbs_sched's place: look, decide, enact, and look again."""
