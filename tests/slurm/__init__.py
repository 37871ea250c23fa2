"""Faults of a run on a real Slurm, whose daemons run in the test's own namespaces."""
