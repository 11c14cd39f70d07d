"""The command line: `diskreplay info runs/pong/replay`, and so on."""
