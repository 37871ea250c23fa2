"""Faults of a run on a real Ray, whose daemons run in namespaces of the test's own."""
