"""Engines, the schedulers that give nodes to replicas. Runs on the cluster's login host, and for Ray also under it."""
