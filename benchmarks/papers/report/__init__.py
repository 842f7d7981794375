"""``python -m benchmarks report``: every experiment of the five papers and the peers, on one page.

papers.yaml is the data: what each paper did, what it claims, and which row of which result judges that;
`claims` reads and judges it, and is pure. `running` decides what is taken and what is run, and runs it, each
in a process of its own. `page` puts claims and results together and shows them. `command` is the command.
"""
