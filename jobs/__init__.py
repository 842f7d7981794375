"""The example jobs: ordinary Hadoop Streaming jobs whose heavy work is done by pipeline servers.

Every job has three runners: this process, processes on this machine, a cluster. What a mapper or reducer
imports (this file included) travels in one zipapp and runs on Python 3.8 with the standard library alone.
"""
