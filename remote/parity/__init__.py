"""Is a captured record right: three checks that share nothing with the code that captured it.

* `canary`: a prompt captured a second time at all boundaries by `canary_hook`, from what the next block's norm really
  read. Sees every fault of every slot that capture makes on that prompt; run at a server's start and again under load.
* `logprobs`: every row of a record's final slot against the log-probabilities that the server answered for that very
  request. Sees wrong, shifted, foreign, zeroed or doubly normed rows of the final slot, on any record.
* `bands`: each slot's norm against what the run has seen. Sees a slot whose scale changed; flags, does not fail.

They judge the forward pass. What happens to a row on its way to the shard is seen in every record and slot by
the row sums (`remote/shared/shard/rowsums.py`). What none of them sees: a fault of the forward pass that hits one
record's auxiliary slots alone, keeps their norms, and was not there when a canary went by.
"""
