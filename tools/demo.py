"""The demonstration behind ``tools/demo``: record Pong, be killed, lose nothing, resume.

Without arguments it directs the whole. It starts itself again for the two processes that train:
``record`` plays Pong until it is killed, ``resume`` goes on from a checkpoint. With
``--machines`` it shows a buffer on three Ray nodes instead.
"""

import sys


def main(arguments: list[str]) -> int:
    """Import no more than the part needs: how long it takes to resume is measured."""
    match arguments:
        case []:
            from demo_parts import director

            return director.main()
        case ["--machines"]:
            from demo_parts import machines

            return machines.main()
        case ["record", directory, descriptor]:
            from demo_parts import recorder

            recorder.main(directory, int(descriptor))
        case ["resume", directory, descriptor, suffix]:
            from demo_parts import resumer

            resumer.main(directory, int(descriptor), suffix)
        case _:
            print("tools/demo takes no arguments, or --machines", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
