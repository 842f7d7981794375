"""The request machine: which request gets memory, a worker and an answer, decided without touching anything.

`machine.RequestMachine` takes the events of `events` and gives the commands of `commands`.
"""
