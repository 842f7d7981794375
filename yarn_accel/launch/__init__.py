"""From this machine into the containers of a cluster: the Python environment, and what runs it there."""
