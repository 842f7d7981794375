"""The grid's protocol as state machines without clock, socket or file.

`messages` has the claims and the messages about them. `coordinator` (at a job's home) and `holder` (at each
site) keep a node from having two owners: confirm, commit, release. Above them `home_job` runs one job over
several sites and `guest` runs blocks for others; `blocks` has their messages.
"""
