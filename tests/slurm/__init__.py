"""Faults of a run on a real Slurm, whose daemons run in namespaces of the test's own."""
