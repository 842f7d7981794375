"""The small program on each node that measures it, and the form its figures travel in.

It takes the place of the paper's heartbeat without a port of its own: it writes one small file, and mom's
``$varattr`` script prints that file into the node's status. Standard library only; NVML where it is there.
"""
