"""Access to what is outside the process: programs, HDFS, local files, HTTP, Hadoop's RPC."""
