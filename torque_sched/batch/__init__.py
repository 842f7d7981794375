"""The batch system: a look at the cluster, and the orders that change it (`batch.system`); adapters below."""
