"""Leases: who works on which part of a run, if work is shared out while it is being done.

One implementation for every engine. A *pool* is a folder in which the parts (chunks) of some work are claimed: a host's
own share, from which an attached laptop takes chunks for other hosts; or a run's queue on a cluster's shared folder,
from which replicas take theirs. Nothing here knows SSH, Slurm or what the records are.

Three promises, at every moment and after every kill -9:

1. A chunk has one holder. A claim is a file that only one claimant can create (`claims`), on local disks and over NFS;
   no lock is held, so nobody has to break one.
2. A holder that is taken for dead is fenced: the next claim of the chunk has a higher token, and a token is never given
   twice. Whoever finishes a chunk asks whether its own token still is the highest.
3. A result counts once: it is published under a name that only one publisher can create (`results`).
"""
