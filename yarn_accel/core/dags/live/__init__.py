"""Policies for DAGs as policies of a task service.

`policy` joins both, `slots` says what runs and lies where, `expected_times` how long tasks take,
`interrupting` which running attempts give way.
"""
