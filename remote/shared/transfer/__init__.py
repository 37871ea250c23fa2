"""Bytes between the laptop and the hosts, both directions, and the destination that shards are delivered to."""
