"""The example jobs: ordinary Hadoop Streaming jobs whose heavy work is done by pipeline servers.

Every job runs on three rungs: in this process, as local pipes, on a cluster. What a mapper or reducer imports
(this file included) travels in one zipapp and runs on Python 3.8 with the standard library alone.
"""
