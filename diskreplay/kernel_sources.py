"""What a kernel's machine code is made of.

Numba holds what it keeps against the file that a kernel stands in. A kernel takes in functions and
numbers of other files too: with another version of one of those, machine code of the old one would
read memory by the old layout.
"""

import functools
import re
import sys
import zlib

_IMPORT = re.compile(rb"^from ([\w.]+) import", re.MULTILINE)
_OF_KERNELS = b"from diskreplay.jit import"


@functools.cache
def digest(module: str) -> int:
    """A number that changes with the source of a kernel's module, and of those that it takes
    functions and numbers from.

    Modules without code for kernels have numbers for them: what such a module imports is not looked
    at.

    Parameters
    ----------
    module : str
        Its name; it is imported.
    """
    packages = {module.partition(".")[0], "diskreplay"}
    found: dict[str, int] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found and name.partition(".")[0] in packages:
            source = _source(name)
            found[name] = zlib.crc32(source)
            if _OF_KERNELS in source:
                waiting += [each.decode() for each in _IMPORT.findall(source)]
    return zlib.crc32(repr(sorted(found.items())).encode())


@functools.cache
def _source(name: str) -> bytes:
    """Nothing of a module that has no file: Numba keeps nothing of such a one."""
    path = getattr(sys.modules.get(name), "__file__", None)
    try:
        with open(path or "", "rb") as file:
            return file.read()
    except OSError:
        return b""
