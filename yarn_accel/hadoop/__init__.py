"""What a client of a Hadoop cluster needs: its site's configuration, the jars, and streaming jobs.

===============  ==============================================================================
``site``         the configuration of a cluster that exists, as its clients see it
``properties``   Hadoop's ``*-site.xml`` files
``jars``         the jars that clients run from: of a HADOOP_HOME, or fetched
``jdk``          where Java is, and how old
``java``         the argument list of a JVM (pure)
``streaming``    streaming jobs: arguments (pure), run, result
``running``      applications that run now
``history``      counters, attempts and logs of finished jobs
``diagnosis``    the one line of a log that names the cause of a failure
===============  ==============================================================================

A Hadoop that this machine starts itself is in :mod:`yarn_accel.testbed`.
"""
