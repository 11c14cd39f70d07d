"""The command ``diskreplay``, also as ``python -m diskreplay``.

Nothing is imported before it can be interrupted in good order.
"""

import sys


def main() -> None:
    """The entry point."""
    if sys.argv[1:] == ["--version"]:  # without the half second that all else takes to load
        from diskreplay import __version__

        print(f"diskreplay {__version__}")
        return
    try:
        from diskreplay.cli.app import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)  # `Code.INTERRUPTED`, which may not be imported yet


if __name__ == "__main__":
    main()
