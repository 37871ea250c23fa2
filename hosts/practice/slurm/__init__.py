"""A real Slurm in its own namespaces on this machine, and the demo that extracts on this Slurm."""
