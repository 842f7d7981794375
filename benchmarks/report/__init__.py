"""``python -m benchmarks report``: every experiment of the five papers and the peers, on one page.

`papers` and `claims` are the data: what each paper did, what it claims, and which row of which result says
what came out here. `judging` is pure. `experiments` decides what is taken and what is run, `running` runs it,
each in a process of its own, and `state` keeps what a killed report needs to go on. `collecting` puts
claims and results together; `rendering` and `pictures` show them.
"""
