"""Pages, charts and pictures: what people see of the master, of runs, of the demo and of benchmarks.

`pages` makes HTML from Jinja2 templates, in which every value is escaped. `charts` draws SVG into pages. Both
run in daemons, and travel to nodes with the environment. `figures` draws PNG with matplotlib, and `runs`
writes the reports on runs of tasks and of DAGs; only commands use these two.
"""
