"""Workflows from files: own YAML, WfFormat (WfCommons) 1.4 and 1.5, DAX; and random ones.

`load` tells the formats apart; each makes a `yarn_accel.core.dags.model.Dag`. What is wrong with a file is
one `ConfigError` that names the file and the place in it.
"""
