"""The only way in which Roost starts concurrent work, on the laptop and on the hosts.

Asyncio tasks (`tasks`), threads (`threads`), pools of threads (`pools`), process pools (`processes`), and a thread that
works on the items of a queue (`consumer`). All of them keep three promises:

1. An unexpected end reaches the owner, with its cause: the block that started the work raises it, or the owner's
   callback gets it.
2. A cut (Ctrl-C, the end of stdin, an exception in the block) cancels queued work, and running work that can be
   cancelled. Threads cannot be cancelled; they are daemons, so that a hanging thread never keeps its process alive.
3. Every wait has a deadline, or checks twice a second whether the work still lives and whether a Ctrl-C came.

Nothing else in Roost calls `threading.Thread`, `asyncio.create_task` or a pool of `concurrent.futures`, except Ray's
actor, whose module runs without Roost's packages; a test checks that. Standard library only: hosts may run Python 3.10
(without `asyncio.TaskGroup`), and the laptop lacks the packages that SGLang installs.
"""

ATTENTION_SECONDS = 0.5
"""The interval between two checks whether the awaited work still lives; a Ctrl-C is noticed within it as well."""
ENDING_SECONDS = 30.0
"""How long work may take to end after its owner asked for the end."""
