"""A blocked LU of one large matrix as a DAG on the task service: tiles in HDFS, a task for each step."""
