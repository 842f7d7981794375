"""Virtual time for the task service: the policies that run live, on a cluster that a file describes.

`world` reads WORLD.yaml, `simulator` runs it under SimPy, `disk` says how the readers of one node share its
disk, `outcome` is what a run amounts to, in the form that a live run has, too.
"""
