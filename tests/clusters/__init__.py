"""What trials of a run on a practice cluster have in common, whichever engine starts the replicas."""
