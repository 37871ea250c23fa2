"""Is a captured record right: three checks that share nothing with the code that captured it.

* `canary`: a prompt captured a second time at all boundaries by `canary_hook`, from what the next block's norm really
  read. Sees every fault of every slot that capture makes on that prompt; run at a server's start and again under load.
* `logprobs`: every row of a record's final slot against the log-probabilities that the server answered for that very
  request. Sees wrong, shifted, foreign, zeroed or doubly normed rows of the final slot, on any record.
* `bands`: each slot's norm against what the run has seen. Sees a slot whose scale changed; flags, does not fail.

What none of them sees: a fault that hits one record's auxiliary slots alone, keeps their norms, and was not there
when a canary went by. Capture gathers all slots of a row in one buffer and moves them in one copy, so a fault on the
way to the disk hits the final slot as well, and `logprobs` sees it. Equal tokens have equal rows: rows swapped
between two records with the same tokens cannot be told apart, and need not be.
"""
