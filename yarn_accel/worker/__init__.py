"""The worker of a task service: one process per node that runs map tasks as commands, in one YARN container.

`service` is the loop: reports go to the master, orders come back, `core.tasks.worker_state` decides what to
start and to end. `attempt_run` is one attempt: the lines of its split go into its command, what it prints
goes to a temporary file, which a rename commits; `task_folder` does so with files that a task leaves, and
`function_pool` keeps processes that call functions in place of commands. `guard` is a process of its own
that starts the commands, and ends all that is left of them, also when the worker is killed.
"""
