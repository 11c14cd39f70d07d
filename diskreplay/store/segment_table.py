"""What the segment table of a field says: how its rows lie in memory, for kernels.

After the figures that have names here come, for each env and slot, two numbers of the segment in
that slot (of segment ``s`` the slot ``s % slots``), both 0 if there is none. Of a raw one they are
the address of the env's first row in it, and 0; of a packed one the address of the shard, and that
of the env's first entry in a copy of its index, which was checked.

Of a packed field the rows of env ``e`` from ``packed[e]`` on are in the tail. Its places are used
in turn: before one gets another row, the block of the row that is there was put into a shard, and
``packed[e]`` was raised past it. So what was copied from the tail holds if ``packed[e]`` has not
passed it afterwards, and nobody has to wait for anybody. A reader in another process goes by a
copy of these numbers, to which its copies of the indexes belong, and holds what it copied against
the live ones.
"""

SLOTS, SEGMENT_ROWS, ROW_BYTES, BLOCK_ROWS, ENVS = 0, 1, 2, 3, 4
STRIDE = 5  # bytes from a row of a raw segment to the next one of that env
STEP = 6  # bytes from the entry of a block in an index to that of the next block of that env
TAIL, TAIL_ROWS = 7, 8  # its address, and its rows of each env
PACKED, LIVE = 9, 10  # addresses of `packed`: of what is gone by, and of what is raised meanwhile
FIGURES = 11
