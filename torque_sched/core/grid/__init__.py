"""The grid paper's model: sites with clusters, jobs that may be split, and the four ways to run one."""
