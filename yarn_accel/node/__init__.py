"""The services of every node: an agent that tells the master how its node is, and mappers where to go."""
