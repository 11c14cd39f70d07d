"""``python -m diskreplay``: the command line, where its entry point is not on the path."""

from diskreplay.cli.app import main

main()
