"""Engines that give nodes to replicas, as they are used on the host from which they are asked."""
