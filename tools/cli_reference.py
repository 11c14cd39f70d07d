"""Write docs/cli.md, the command line's reference, from what ``diskreplay --help`` is made of.

::

    python tools/cli_reference.py           write it
    python tools/cli_reference.py --check   say whether it is current, exit code 1 if not
"""

import inspect
import sys
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cli.md"

_HEAD = """\
# The command line

{help}

Written by `tools/cli_reference.py` from the commands' own help; do not edit it. The same is shown
by `diskreplay --help` and `diskreplay COMMAND --help`.

{commands}

{epilog}
## Options of every command

{options}
"""


def reference() -> str:
    """The whole page."""
    from diskreplay.cli.app import app

    group: Any = typer.main.get_command(app)
    listed = [f"- [`{name}`](#{name}): {_text(c.help, 1)}" for name, c in group.commands.items()]
    parts = [
        _HEAD.format(
            help=_text(group.help),
            commands="\n".join(listed),
            epilog=inspect.cleandoc(group.epilog) + "\n",
            options=_table([param for param in group.params if param.name != "help"]),
        )
    ]
    parts += [_section(name, command) for name, command in group.commands.items()]
    return "\n".join(parts)


def _section(name: str, command: Any) -> str:
    arguments = " ".join(
        _name(param) if param.required else f"[{_name(param)}]"
        for param in command.params
        if param.param_type_name == "argument"
    )
    usage = ("diskreplay", name, arguments, "[OPTIONS]")
    parts = [f"## {name}", "    " + " ".join(filter(None, usage)), _text(command.help)]
    parts.append(_table(command.params))
    if command.epilog:
        parts.append(_text(command.epilog))
    return "\n\n".join(parts) + "\n"


def _table(params: list[Any]) -> str:
    lines = ["| | |", "| --- | --- |"]
    for param in params:
        help_ = " ".join((param.help or "").split())
        if param.param_type_name == "option":
            if param.required:
                help_ += " Required."
            elif param.show_default and not (
                param.default is None or isinstance(param.default, bool | list | tuple)
            ):
                default = getattr(param.default, "value", param.default)
                shown = param.show_default if isinstance(param.show_default, str) else default
                help_ += f" Default: `{shown}`."
        lines.append(f"| {_name(param)} | {help_.strip()} |")
    return "\n".join(lines)


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return param.metavar or param.name.upper()
    value = f" {param.metavar}" if (param.metavar or "").startswith("[") else ""
    return ", ".join(f"`{name}{value}`" for name in [*param.opts, *param.secondary_opts])


def _text(text: str | None, paragraphs: int | None = None) -> str:
    parts = inspect.cleandoc(text or "").split("\n\n")[:paragraphs]
    lines = (" " * 4 * p.startswith("diskreplay ") + " ".join(p.split()) for p in parts)
    return "\n\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write or check; the exit code."""
    if arguments == ["--check"]:
        current = PAGE.is_file() and PAGE.read_text() == reference()
        print(f"{PAGE}: {'current' if current else 'not current; run tools/cli_reference.py'}")
        return 0 if current else 1
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    PAGE.write_text(reference())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
