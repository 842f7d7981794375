"""Stock Hadoop on this machine: resolve, configure, start, submit, look up.

==================  ==============================================================================
``install``         Hadoop's jars, by artifact, in the cache; or those of a HADOOP_HOME
``archives``        one class data archive for all JVMs
``jdk``             where Java is, and how old
``java``            the argument list of a JVM (pure)
``conf``            configuration directories from the templates in ``hadoop_conf/``
``site``            a cluster that exists, as its clients see it
``streaming``       streaming jobs: arguments (pure), run, result
``history``         counters, attempts and logs of finished jobs
``diagnosis``       from much output to the one line that says what went wrong
``single_node``     five daemons on loopback, for recording and tests
``record``          recording the class list
``cli``             ``yarn-accel hadoop``
==================  ==============================================================================
"""
