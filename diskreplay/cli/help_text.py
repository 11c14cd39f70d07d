"""What `--help` prints: plain text, in which no name, choice or example is broken in two."""

import inspect
import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

_TYPE = re.compile(r"<(\w+)(?: range)?>")  # Typer's `<int range>`
_CODE = re.compile(r"`(.+?)`")
_INDENT = " " * 4


class _Epilog:
    """Of a command or of the group of all: examples have lines of their own, to be copied."""

    epilog: str | None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write what stands at the end."""
        for part in inspect.cleandoc(self.epilog or "").split("\n\n"):
            part = part.replace("**", "")
            if part.strip().startswith("diskreplay "):
                formatter.write(f"{_INDENT}{part.strip()}\n")
                continue
            if part.startswith("- "):
                formatter.write(f"{_INDENT}{part[2:]}\n".replace("\n- ", f"\n{_INDENT}"))
                continue
            head, colon, examples = part.partition(": ")
            formatter.write_paragraph()
            if colon and head.startswith("Example"):
                formatter.write(f"{head}:\n")
                for example in _CODE.findall(examples):
                    formatter.write(f"{_INDENT}{example}\n")
            elif part:
                formatter.write_text(part)


class Command(_Epilog, TyperCommand):
    """One command."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words behind the command's name."""
        pieces = [self.options_metavar or ""]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                pieces.append(_name(param) if param.required else f"[{_name(param)}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what each argument and option means."""
        shown: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                shown["Arguments"].append((_name(param), getattr(param, "help", None) or ""))
            elif record := param.get_help_record(ctx):
                names = _TYPE.sub(lambda found: found[1].upper(), record[0])
                shown["Options"].append((names, record[1]))
        for title, rows in shown.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Commands(_Epilog, TyperGroup):
    """The group of all commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the first paragraph of each command's help."""
        rows = []
        for name in self.list_commands(ctx):
            first = inspect.cleandoc(
                getattr(self.get_command(ctx, name), "help", None) or ""
            ).split("\n\n")[0]
            rows.append((name, " ".join(first.split())))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _name(param: Any) -> str:
    return param.metavar or param.name.upper()
