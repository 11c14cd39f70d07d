"""The command ``diskreplay``, also as ``python -m diskreplay``.

Nothing is imported before it can be interrupted in good order.
"""

import contextlib
import os
import sys


def main() -> None:
    """The entry point."""
    _have_streams()
    if sys.argv[1:] == ["--version"]:  # without the half second that all else takes to load
        from diskreplay import __version__

        with contextlib.suppress(OSError):  # then the command says it, with the code for that
            print(f"diskreplay {__version__}", flush=True)
            return
    try:
        from diskreplay.cli.app import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)  # `Code.INTERRUPTED`, which may not be imported yet


def _have_streams() -> None:
    """Have streams that take any text. One that was closed (``>&-``) leads nowhere: else a file of
    the store may get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as we run
    for stream in (sys.stdout, sys.stderr):
        encoding = str(getattr(stream, "encoding", None)).lower().replace("-", "")
        if hasattr(stream, "reconfigure") and encoding != "utf8":  # which may lack a bar, say
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
