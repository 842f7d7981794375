"""What leaves this machine: the mapper (in the job's zipapp) and the operations of a server that waits."""
