"""The command `diskreplay`: its commands, its exit codes, and what it says when it fails."""

import contextlib
import itertools
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Annotated, Any, TextIO

import typer
from rich.text import Text

import diskreplay
from diskreplay import errors
from diskreplay.cli import (
    checks,
    completion,
    copies,
    help_text,
    look,
    pictures,
    remote,
    show,
    size,
    transfer,
    view,
    warmup,
    watch,
)
from diskreplay.cli.common import Code, error_console, lead_nowhere

_EPILOG = """\
**Examples:**

    diskreplay info runs/pong/replay

    diskreplay episodes runs/pong/replay --sort return --limit 5

    diskreplay verify runs/pong/checkpoints/replay_ckpt.1999

**Exit codes:**

- 0: fine
- 1: `verify` or `diff` found something
- 2: usage, or what was asked for is not in the store
- 3: there is no store at the path, or none that this version can read
- 4: the operating system or an object store refused
- 5: another writer holds the store
- 6: data is damaged
- 7: an optional package is missing
- 70: a defect of diskreplay; please report what it prints
- 130: interrupted
"""

# What the engine says to a training program, and what a command says instead.
_IN_A_SHELL = {
    " (mend the cause and call again)": "",
    "free some space and call again": "free some space and try again",
    "(overwrite=True)": "(--force)",
    ", or take data_format='parquet'": "",
    "RemoteCheckpoints(url, takeover=True), in the shell --takeover": "--takeover",
    "RemoteCheckpoints(url, unsafe_single_writer=True)": "the Python call that says so",
    "open it there to write, or with mode='r' to read": "only that writes to it",
    'close it there, or read along with diskreplay.open(path, mode="r")': "end it first, or wait",
}

_USAGE_ERROR: Any = typer.BadParameter.mro()[1]  # Click's own, or what Typer has in its place

# The first that fits counts.
_CODES: tuple[tuple[type[BaseException], Code], ...] = (
    (errors.LockedError, Code.LOCKED),
    (errors.CorruptSegmentError, Code.DAMAGED),
    (errors.CorruptCheckpointError, Code.DAMAGED),
    (errors.StoreError, Code.NO_STORE),
    (errors.CheckpointError, Code.NO_STORE),
    (errors.StorageError, Code.SYSTEM),
    (errors.DiskReplayError, Code.USAGE),
    (ImportError, Code.PACKAGE),
    (OSError, Code.SYSTEM),
    (MemoryError, Code.SYSTEM),
)


class _Commands(help_text.Commands):
    """The group of all commands: ``--debug`` may stand anywhere, and an error becomes one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = args[: args.index("--")] if "--" in args else args
        if "--debug" in own:
            args = ["--debug", *(arg for arg in own if arg != "--debug"), *args[len(own) :]]
        args = _with_values(args)
        with _failing_well(debug="--debug" in own):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _failing_well(debug=ctx.params.get("debug", False)):
            return super().invoke(ctx)


# Options whose value may be left out: what one looks like, and what stands for none.
_OPTIONAL = {
    "--install-completion": (re.compile(r"[^-].*"), completion.THIS_ONE),
    "--show-completion": (re.compile(r"[^-].*"), completion.THIS_ONE),
    "--watch": (re.compile(r"[\d.]+"), watch.INTERVAL),
    "-w": (re.compile(r"[\d.]+"), watch.INTERVAL),
}


def _with_values(args: list[str]) -> list[str]:
    """The arguments, with a value after each option that stands without one."""
    own = args[: args.index("--")] if "--" in args else args
    made = []
    for arg, following in itertools.zip_longest(own, own[1:], fillvalue=""):
        made.append(arg)
        if arg in _OPTIONAL and not _OPTIONAL[arg][0].fullmatch(following):
            made.append(_OPTIONAL[arg][1])
    return made + args[len(own) :]


@contextlib.contextmanager
def _failing_well(*, debug: bool) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, typer.Abort):  # the latter at a question
        raise typer.Exit(Code.INTERRUPTED) from None
    except BrokenPipeError:
        lead_nowhere(sys.stdout)  # `diskreplay episodes ... | head`
        raise typer.Exit(Code.FINE) from None
    except _USAGE_ERROR as error:  # Typer would let through that it cannot be said
        try:
            error.show()
        except OSError:
            lead_nowhere(sys.stderr)
        raise typer.Exit(Code.USAGE) from None
    except tuple(kind for kind, _code in _CODES) as error:
        if isinstance(error, ImportError) and "pip install" not in str(error):
            raise  # a mistake of ours, not a package that one could install
        if debug:
            traceback.print_exc()
        says = " ".join(_text(error).split())
        _say(Text.assemble(("error: ", "bold red"), says))
        try:
            sys.stdout.flush()
        except OSError:  # it keeps what a full disk refused
            lead_nowhere(sys.stdout)
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        raise typer.Exit(code) from None


def _say(text: Text) -> None:
    """To the standard error; if it takes nothing, the exit code says what can be said."""
    try:
        error_console.print(text, soft_wrap=True)
    except OSError:
        lead_nowhere(sys.stderr)


def _text(error: BaseException) -> str:
    """The message, without an ``[Errno 13]`` in front."""
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    elif isinstance(error, MemoryError):
        text = f"not enough memory; {error}".removesuffix("; ")
    else:
        text = str(error) or type(error).__name__
    for of_programs, instead in _IN_A_SHELL.items():
        text = text.replace(of_programs, instead)
    return text


app = typer.Typer(
    name="diskreplay",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,  # `completion` has options of its own
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["--help", "-h"]},
)
for _module in (look, view, show, pictures, checks, transfer, copies, remote, size, warmup):
    for _command in _module.commands.registered_commands:
        _command.cls = help_text.Command
    app.add_typer(_module.commands)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diskreplay {diskreplay.__version__}")
        raise typer.Exit()


@app.callback()
def diskreplay_(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True),
    ] = False,
    install_completion: completion.InstallOption = None,
    show_completion: completion.ShowOption = None,
) -> None:
    """Look into a replay buffer on disk, check it, and take it elsewhere.

    What only reads works on a live store while training writes to it, and on a checkpoint's
    directory. It shows the store of one moment: that at which the command was given.
    """


def _say_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """One line, as an error is; not where in the source somebody warned."""
    _say(Text.assemble(("warning: ", "bold yellow"), str(message)))


def main() -> None:
    """The entry point."""
    warnings.showwarning = _say_warning
    try:
        app(prog_name="diskreplay")  # also as `python -m diskreplay`, for completion
    except Exception:  # nothing is hidden; but 1 would say that `verify` found something
        try:
            traceback.print_exc()
        except OSError:
            lead_nowhere(sys.stderr)
        sys.exit(Code.DEFECT)


if __name__ == "__main__":
    main()
