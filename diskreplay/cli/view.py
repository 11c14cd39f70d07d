"""The command that shows stores in a browser: view."""

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diskreplay.cli.common import OF_A_PATH, console, error_console

if TYPE_CHECKING:
    from diskreplay.view.server import Address

commands = typer.Typer()


@commands.command(epilog="Example: `diskreplay view runs/pong`")
def view(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", **OF_A_PATH,
            help="Stores, checkpoints, or directories with some in them.",
        ),
    ],
    port: Annotated[
        int | None,
        typer.Option(
            "--port", "-p", min=0, max=65535,
            help="Default: 8642, or a free one if that is taken. 0 takes any free one.",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address to listen on; 0.0.0.0 means all addresses of this machine. Then whoever "
            "has the token can read the stores, and the connection is not encrypted: an SSH tunnel "
            "is safer.",
        ),
    ] = "127.0.0.1",
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="NAME",
            help="With --host: one more host name that the page answers to.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", envvar="DISKREPLAY_VIEW_TOKEN",
            help="A token of your own, so that the address stays the same. Default: a new one each "
            "time. Other users of this machine can see an option; the variable is safer.",
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser of this machine.")
    ] = False,
) -> None:  # fmt: skip
    """Show live stores and checkpoints as a local web page, until Ctrl-C.

    The page follows training: rates, returns, priorities, sizes. It plays any episode, shows any
    row, and compares two stores. It only reads. If the stores are on another machine, run this
    command there, make a tunnel with `ssh -L 8642:127.0.0.1:8642 MACHINE`, and open the address
    that the command prints.
    """
    try:
        from diskreplay.view.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise ModuleNotFoundError(
            'the page is served by Starlette and uvicorn: pip install "diskreplay[view]"',
            name=error.name,
        ) from error

    def ready(address: "Address") -> None:
        if not address.is_local:
            error_console.print(
                f"warning: whoever can reach {address.host} and has the token can read these "
                "stores, and the connection is not encrypted",
                style="bold yellow", soft_wrap=True,
            )  # fmt: skip
        console.print(f"{address.url}\nCtrl-C ends it", soft_wrap=True)
        if not address.has_stores:
            error_console.print(
                "there is no store yet; the page shows it when it comes", soft_wrap=True
            )
        if open_browser:
            webbrowser.open(address.url)

    serve(paths, ready, host=host, port=port, names=names or (), token=token)
