"""A replica: one node's whole session of a run on a cluster, in the foreground of the job that pays for it."""
