"""Workflows (DAGs) on machines: HEFT, slowdown, and the policies that plan many of them at once.

`model` has the values, `heft` schedules one DAG alone, `slowdown` says how delayed each is, `state` follows
the world, `timeline` is a plan, and `policies` decide. `events` joins those of `yarn_accel.core.tasks`;
orders are its `EnqueueTask` and `TakeBackTask`. Nothing here has a clock: equal events give equal orders.
"""
