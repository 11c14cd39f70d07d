"""How kernels are told what to read: single reads, and jobs that several threads read.

Several threads read one batch in parts. `batch_kernels.windows` and `take_parts` say in the memory
of a job what is to be read; they and all who call `help_read` with that job take the next part that
nobody has taken, until there is none, and they return when the last one is done. So nothing depends
on whether others come, or when: who comes late finds nothing to do, and looks at the job only.
"""

# A read: rows start..stop of an env, the memory they go to and, once found, where they begin or, of
# a packed segment, where the index has the block they begin in. Rows from `SPLIT` on go to other
# memory, and so many before it (`SHARED`) to both: there they stand in front of it.
ENV, START, STOP, TARGET, SOURCE, ENTRY, SPLIT, SECOND, SHARED, READ = range(10)
READS = 4096  # that `take` does at a time

# A job: parts, taken, done, and of those taken how many by helpers (-1 taken while nobody may take
# any); threads that may read, and helpers that came; addresses and figures of what is to be read;
# and of each part what came of it.
PARTS, TAKEN, DONE, FROM_BEHIND, THREADS, HELPERS = range(6)
TABLE, PLANNED, COUNT, ROWS, STACK, HORIZON, FIRST, WIDTH, NEXT, SCRATCH, WORDS = range(6, 17)
JOB = 17  # words, before those of the parts
OF_IDS = 0  # a stack of no frames: rows are taken by their ids, `WIDTH` of them for one of `COUNT`
