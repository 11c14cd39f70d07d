"""Completion in a shell: the script that asks this program for what can come next."""

from typing import Annotated, Any

import typer
from typer import completion as _completion

from diskreplay.errors import InvalidInputError

_PROGRAM = "diskreplay"
_VARIABLE = "_DISKREPLAY_COMPLETE"
_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
THIS_ONE = "this"  # the shell that the command is typed into

# Typer's own two options take no name: they go by the process that calls, so that
# `--show-completion zsh` in bash prints what bash needs, and in a program nothing is found.
completion: Any = _completion
completion.completion_init()


def _named(shell: str) -> str:
    if shell == THIS_ONE:
        import shellingham

        try:
            shell = shellingham.detect_shell()[0]
        except shellingham.ShellDetectionFailure:
            raise InvalidInputError(
                f"which shell this is cannot be told; name it: --show-completion "
                f"{'|'.join(_SHELLS)}"
            ) from None
    if shell not in _SHELLS:
        raise InvalidInputError(f"shell {shell!r}: one of {', '.join(_SHELLS)} expected")
    return shell


def _show(ctx: typer.Context, shell: str | None) -> None:
    if shell is None or ctx.resilient_parsing:
        return
    typer.echo(_script(_named(shell)))
    raise typer.Exit()


def _install(ctx: typer.Context, shell: str | None) -> None:
    if shell is None or ctx.resilient_parsing:
        return
    shell, path = completion.install(
        shell=_named(shell), prog_name=_PROGRAM, complete_var=_VARIABLE
    )
    typer.echo(f"completion for {shell} is in {path}; it works in the next {shell} that starts")
    raise typer.Exit()


def _script(shell: str) -> str:
    return completion.get_completion_script(prog_name=_PROGRAM, complete_var=_VARIABLE, shell=shell)


InstallOption = Annotated[
    str | None,
    typer.Option(
        "--install-completion", metavar="[SHELL]", callback=_install, is_eager=True,
        expose_value=False,
        help="Make a shell complete commands and options: bash, zsh, fish or powershell; without "
        "a name the one this is typed into.",
    ),
]  # fmt: skip
ShowOption = Annotated[
    str | None,
    typer.Option(
        "--show-completion", metavar="[SHELL]", callback=_show, is_eager=True,
        expose_value=False,
        help="Print the script that does so, to install it yourself.",
    ),
]  # fmt: skip
