"""Faults of a run on a real Ray, whose daemons run in the test's own namespaces."""
