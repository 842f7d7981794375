"""Policies for DAGs as policies of a task service.

`policy` joins both: `rows` makes the plan follow the service's table, `queues` decides what waits at workers,
`expected_times` says how long tasks and DAGs take.
"""
