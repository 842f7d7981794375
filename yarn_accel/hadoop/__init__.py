"""A Hadoop cluster as its clients use it: the site's configuration, the jars, streaming jobs, applications.

=============  ================================================================================
``site``       the configuration of a cluster that exists, as its clients see it
``java``       where Java and the jars are, and the argument list of a JVM
``streaming``  streaming jobs: arguments, run, result
``history``    counters, attempts and logs of finished jobs, and the cause of a failure
``rm_client``  the cluster's ResourceManager, and the applications that run now
``control``    signed requests to an application's master
=============  ================================================================================

A Hadoop that this machine starts itself is in :mod:`yarn_accel.testbed`.
"""
