"""Screening of NCCL settings: the collectives that tensor parallelism sends, timed without a server. Host side."""
