"""Which task of which application runs where, in which form, and why: values, the seam, and the policies.

`events` and `commands` are the seam between a task service, live or simulated, and a policy. Policies take
no clock and touch nothing: equal events give equal commands.
"""
