"""Checks whether captured records are right, in three ways that share no code with capture itself.

* `canary`: a prompt that `canary_hook` captures a second time at all boundaries, from the input of the next block's
  norm. It finds every fault of capture in every slot of that prompt. Run at a server's start and again under load.
* `logprobs`: compares every row of a record's final slot with the server's log-probabilities for the same request. It
  finds wrong, shifted, foreign, zeroed or doubly normed rows in the final slot of any record.
* `bands`: compares each slot's norm with the earlier records of the run. It finds a slot whose scale changed, and flags
  the record without failing it.

They judge the forward pass. The row sums (`remote/shared/shard/rowsums.py`) find faults on a row's way to the shard, in
every record and slot. One kind of fault goes unnoticed: a fault of the forward pass in the auxiliary slots of a single
record that keeps their norms and did not occur while a canary ran.
"""
