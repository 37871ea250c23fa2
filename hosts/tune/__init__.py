"""`inv tune`: search for the NCCL settings and all-reduce flags that serve a model fastest on a host."""
