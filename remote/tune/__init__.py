"""Screens NCCL settings: times the collectives of tensor parallelism without a server. Host side."""
