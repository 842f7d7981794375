"""The pipeline server: remote read, compute, remote write behind bounded queues."""
