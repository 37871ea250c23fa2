"""A practice Ray: real daemons on practice nodes, for the tests and `make demo-ray`."""
