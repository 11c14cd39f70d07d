"""The command that says how much disk a run will take."""

from typing import Annotated

import typer

from diskreplay.cli.common import JsonOption, console, say_json
from diskreplay.cli.layout import Listing, facts
from diskreplay.errors import InvalidInputError
from diskreplay.inspection.humanize import size_text, space_text
from diskreplay.integrations import sizing

commands = typer.Typer()


@commands.command(
    epilog="Examples: `diskreplay size --capacity 1e6 --env ALE/Pong-v5`, "
    "`diskreplay size --capacity 200000 --env CartPole-v1 --json`"
)
def size(
    env: Annotated[
        str, typer.Option("--env", help="Name of an environment, as for `gymnasium.make`.")
    ],
    capacity: Annotated[
        float,
        typer.Option(
            "--capacity",
            metavar="ROWS",
            show_default=False,
            help="Rows that the buffer keeps, over all envs: at least 1000. Default: 1e6.",
        ),
    ] = 1e6,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            help="Steps to record: at least 1000, at most the capacity. Default: 10000, or the "
            "capacity if that is less.",
        ),
    ] = None,
    as_drawn: Annotated[
        bool,
        typer.Option("--as-drawn", help="Record Atari games as they draw, not 84x84 in grey."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say how much disk a buffer takes, for each codec.

    Records a sample of random play with each codec, in a temporary directory, and measures what a
    row costs. Frames of a trained agent may compress better or worse. An Atari game is seen
    as agents commonly see it: every fourth frame, 84x84, grey.
    """
    if not capacity.is_integer():  # nor are infinity and NaN
        raise InvalidInputError(f"--capacity: a whole number of rows expected, found {capacity}")
    found = sizing.sizes(sizing.make(env, preprocess=not as_drawn), int(capacity), steps=steps)
    if as_json:
        say_json({**found._asdict(), "observation_space": str(found.observation_space),
                  "codecs": [each._asdict() for each in found.codecs]})  # fmt: skip
        return
    lines = {
        "recorded": f"{found.rows:,} rows of {space_text(str(found.observation_space))}",
        "plain arrays": f"{size_text(found.plain_bytes)} for {int(capacity):,} rows",
    }
    console.print(facts(lines))
    table = Listing("codec", ">on disk", ">bytes a row", ">of the plain arrays")
    for each in found.codecs:
        share = each.disk_bytes / found.plain_bytes
        table.add(each.codec, size_text(each.disk_bytes), f"{each.row_bytes:,.0f}", f"{share:.1%}")
    console.print(table)
