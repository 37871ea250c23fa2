"""Leases: which worker works on which part of a run, if parts are given out during the run.

One implementation serves every engine. A *pool* is a folder in which the parts (chunks) of some work are claimed: a
host's own share, from which an attached laptop takes chunks for other hosts; or a run's queue on a cluster's shared
folder, from which replicas take chunks. This package knows nothing of SSH, of Slurm or of the records.

Three promises hold at every moment and after every kill -9:

1. A chunk has one holder. A claim is a file that only one claimant can create (`claims`), on local disks and over NFS.
   No lock is held, so no lock has to be broken.
2. A holder that counts as dead is fenced: the next claim of the chunk has a higher token, and a token is never given
   twice. A worker that finishes a chunk checks whether its token is still the highest.
3. A result counts once: it is published under a name that only one publisher can create (`results`).
"""
