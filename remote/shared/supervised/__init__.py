"""The one way in which Roost starts work that runs beside other work, on the laptop and on the hosts.

Asyncio tasks (`tasks`), threads and pools of threads (`threads`), pools of processes (`processes`), and a thread that
takes what others hand in (`consumer`). All of them keep three promises:

1. An unexpected end reaches the owner, with its cause: the block that started the work raises it, or the owner's
   callback is told.
2. A cut (Ctrl-C, stdin's end, an exception in the block) cancels what is queued and what runs, where it can be
   cancelled. A thread cannot be: threads are daemons, so that one that hangs never keeps its process alive.
3. Every wait has a deadline, or looks up twice a second: whether the work still lives, and whether a Ctrl-C came.

Nothing else in Roost calls `threading.Thread`, `asyncio.create_task` or a pool of `concurrent.futures`; a test says so.
The standard library alone: hosts may run Python 3.10 (no `asyncio.TaskGroup`), and the laptop lacks what SGLang brings.
"""

ATTENTION_SECONDS = 0.5
"""Between two looks at whether what is waited for still lives; a Ctrl-C is seen within this time as well."""
ENDING_SECONDS = 30.0
"""What work gets to end once its owner has no more use for it."""
