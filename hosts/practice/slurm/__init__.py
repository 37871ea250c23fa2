"""A real Slurm in namespaces of its own, on this machine alone, and the demo that extracts on it."""
