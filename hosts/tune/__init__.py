"""`inv tune`: which NCCL settings and all-reduce flags serve this model fastest on this box, found by command."""
