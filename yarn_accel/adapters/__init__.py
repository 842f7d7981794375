"""The edges: processes, HDFS, files, HTTP."""
