"""The common part of trials of a run on a practice cluster: the same for every engine."""
