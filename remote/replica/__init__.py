"""A replica: one node's whole session of a run on a cluster. It runs in the foreground of the node's job."""
