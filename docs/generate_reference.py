"""Writes docs/reference/ from the docstrings and from the tables that the commands are made of.

    python docs/generate_reference.py            # write the pages anew
    python docs/generate_reference.py --check    # exit status 1 if any is out of date

The Python pages are read from the source with `ast`: signatures appear as they are written, and
nothing depends on the version of Python that runs this. The command pages are the commands' own
help, the tables their own tables.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docstring_markdown import paragraphs

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
REFERENCE = ROOT / "docs" / "reference"
HELP_WIDTH = 96
COMMANDS_INTRODUCTION = (
    "Errors are one line on stderr. Exit status: 0 done (also when nothing beat the compiler's",
    "defaults), 1 a fault of tilewright, 2 something that the user can mend, 130 interrupted.",
)

# The public modules, page by page. A package stands for the names in its `__all__`.
PAGES = {
    "tilewright": (
        "The package itself, and the plain data that everything speaks in.",
        [
            "tilewright",
            "errors",
            "target",
            "workload",
            "site",
            "tiling",
            "gpu",
            "trial",
            "argument",
        ],
    ),
    "tuning": (
        "Tuning runs, their events, results and stages; inspecting and applying.",
        [
            "tuning.session",
            "tuning.session_stages",
            "tuning.options",
            "tuning.events",
            "tuning.result",
            "tuning.inspect",
            "tuning.apply",
            "tuning.proof",
            "tuning.entries",
            "tuning.stages",
            "tuning.candidate_trial",
            "tuning.search_loop",
            "tuning.variants",
            "tuning.config_file",
        ],
    ),
    "space": ("Search spaces: works alone.", ["space", "space.interface", "space.generators"]),
    "search": ("Search strategies.", ["search"]),
    "schedule": (
        "Tensor expressions, schedules, templates; [primitives](primitives.md) has the "
        "primitives of schedules.",
        ["te", "tuning.template_search"],
    ),
    "primitives": (
        "The 21 primitives of TVM's schedules, and one of Halide's. The nests in the examples are "
        "what they do: tests run them.",
        [
            "schedule",
            "schedule.stage",
            "schedule.loop_primitives",
            "schedule.execution_primitives",
            "schedule.placement_primitives",
            "schedule.dataflow_primitives",
            "schedule.schedule",
        ],
    ),
    "sketch": (
        "Kernels of our own: what a sketch is and which there are, packed operands, translation.",
        [
            "sketch.interface",
            "sketch.generators",
            "sketch.packing",
            "sketch.structure",
            "sketch.translate",
            "sketch.candidate",
            "sketch.spec",
        ],
    ),
    "measure": (
        "Compiling in worker processes, measuring, verifying: works alone.",
        [
            "measure.pool",
            "measure.jobs",
            "measure.compile_worker",
            "measure.benchmark",
            "measure.timing",
            "measure.comparison",
            "measure.statistics",
            "measure.verify",
            "measure.inputs",
            "measure.input_syntax",
            "measure.runtime",
            "measure.device_options",
            "measure.in_flight",
            "measure.machine",
            "measure.peak",
            "measure.devices",
            "measure.exchange",
            "measure.remote",
            "measure.station",
            "measure.gpu_state",
        ],
    ),
    "replay": (
        "The bench: recorded spaces, searched in simulated time.",
        ["replay", "replay.record", "replay.arena", "replay.simulate", "replay.t4"],
    ),
    "modules": (
        "Compiled modules: opened, run, benchmarked.",
        [
            "modules.module_source",
            "modules.ready_module",
            "modules.functions",
            "modules.running",
            "modules.benchmarking",
            "modules.compiling",
        ],
    ),
    "kernels": (
        "Kernels to be measured: operations, their programs, what NumPy says of them.",
        ["kernels", "kernels.operation", "kernels.kinds", "kernels.shapes", "kernels.suite"],
    ),
    "profiler": (
        "The dispatch profiler: kernels generated, compiled, verified, measured.",
        ["profiler", "profiler.names", "profiler.report"],
    ),
    "compare": (
        "Workloads with providers side by side, and their results.",
        [
            "compare",
            "compare.workloads",
            "compare.harness",
            "compare.comparison_options",
            "compare.results",
            "compare.diff",
            "compare.providers.interface",
            "compare.machine_state",
        ],
    ),
    "report": ("Pages on tuning runs and comparisons.", ["report"]),
    "store": ("The database.", ["store"]),
    "spec": ("Tuning specs.", ["spec.write", "spec.read", "spec.report", "spec.merge"]),
    "toolchain": ("IREE's tools.", ["toolchain", "ir.session"]),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write docs/reference/.")
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    check = parser.parse_args(arguments).check
    pages = dict(all_pages())
    stale = [
        name
        for name in sorted({*pages, *(p.name for p in REFERENCE.glob("*.md"))})
        if not (REFERENCE / name).is_file() or (REFERENCE / name).read_text() != pages.get(name)
    ]
    if check:
        for name in stale:
            print(f"docs/reference/{name} is out of date; run: python docs/generate_reference.py")
        return 1 if stale else 0
    REFERENCE.mkdir(exist_ok=True)
    for name in stale:
        if name in pages:
            (REFERENCE / name).write_text(pages[name])
        else:
            (REFERENCE / name).unlink()
    return 0


def all_pages() -> Iterator[tuple[str, str]]:
    """File names with their contents."""
    yield "commands.md", commands_page()
    yield "options.md", options_page()
    for name, (about, modules) in PAGES.items():
        yield f"{name}.md", module_page(name, about, modules)
    yield "README.md", index_page()


def index_page() -> str:
    lines = ["# Reference", "", "Written by `python docs/generate_reference.py`; do not edit.", ""]
    lines.append("- [commands](commands.md): what each command takes, from its own help.")
    lines.append("- [options](options.md): options, efforts, variants, strategies, statuses.")
    for name, (about, _) in PAGES.items():
        lines.append(f"- [{name}]({name}.md): {about}")
    return _page(lines)


# -- the commands ----------------------------------------------------------------------------------


def commands_page() -> str:
    import click

    from tilewright.cli.main import commands

    lines = ["# Commands", "", "Errors are one line on stderr. Exit status: 0 done (also when"]
    lines += [
        "nothing beat the compiler's defaults), 1 a fault of tilewright, 2 something that the"
    ]
    lines += ["user can mend, 130 interrupted.", ""]

    def add(command: click.Command, context: click.Context) -> None:
        lines.extend([f"## {context.command_path}", "", "```text"])
        lines.extend(line.rstrip() for line in command.get_help(context).splitlines())
        lines.extend(["```", ""])
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                add(child, _context(click, child, name, context))

    add(commands, _context(click, commands, "tilewright", None))
    return _page(lines)


def _context(click: Any, command: Any, name: str, parent: Any) -> Any:
    return click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=HELP_WIDTH,
        max_content_width=HELP_WIDTH,
        help_option_names=["-h", "--help"],
    )


# -- the tables ------------------------------------------------------------------------------------


def options_page() -> str:
    import dataclasses
    import inspect

    from tilewright.search import strategies
    from tilewright.tuning.effort import EFFORTS, Effort
    from tilewright.tuning.options import TuneOptions, option_table
    from tilewright.tuning.variants import BUILT_IN

    defaults = {f.name: f for f in dataclasses.fields(TuneOptions)}
    lines = ["# Options, efforts, variants, strategies", ""]
    lines += ["## Options of `tilewright tune` and `tilewright.tune`", ""]
    lines += [
        "One table makes the command's options, the fields of `TuneOptions` and this page.",
        "",
    ]
    rows: list[tuple[str, ...]] = [
        (
            f"`{o.flag}{' ' + o.metavar if o.metavar else ''}`"
            + (f", `{o.short}`" if o.short else ""),
            f"`{o.name}`",
            _default(defaults[o.name].default),
            o.help + ("; may be repeated" if o.multiple else ""),
            "yes" if o.identifies else "",
        )
        for o in option_table()
    ]
    lines += _table(("option", "field", "default", "meaning", "must match to resume"), rows)
    lines += ["", "## Efforts", "", *paragraphs(inspect.getdoc(Effort) or ""), ""]
    fields = [f.name for f in dataclasses.fields(Effort)]
    rows = [tuple(_value(getattr(e, name)) for name in fields) for e in EFFORTS.values()]
    lines += _table(fields, rows)
    lines += ["", "## Variants", ""]
    rows = [
        (f"`{v.name}`", " ".join(f"`{flag}`" for flag in v.flags), v.note)
        for v in BUILT_IN.values()
    ]
    lines += _table(("name", "flags", "what it does"), rows)
    lines += ["", "## Strategies", ""]
    for name, strategy in strategies().items():
        lines += [f"### {name}", "", strategy.summary[:1].upper() + strategy.summary[1:] + ".", ""]
        rows = [
            (f"`{o.name}`", _value(o.default), o.allowed(), o.help) for o in strategy.options_table
        ]
        if rows:
            lines += [*_table(("option", "default", "allowed", "meaning"), rows), ""]
    return _page(lines)


def _default(value: object) -> str:
    return "" if value is None or value == () or value is False else f"`{value}`"


def _value(value: object) -> str:
    if value is None:
        return "all"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _table(header: Any, rows: Any) -> list[str]:
    def line(cells: Any) -> str:
        return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"

    return [line(header), "|" + " --- |" * len(header), *(line(row) for row in rows)]


# -- the modules -----------------------------------------------------------------------------------


def module_page(name: str, about: str, modules: list[str]) -> str:
    lines = [f"# {name}", "", about, ""]
    for module in modules:
        lines += _module(module)
    return _page(lines)


def _module(module: str) -> list[str]:
    dotted = module if module == "tilewright" else f"tilewright.{module}"
    tree = _parse(dotted)
    title, _, text = (ast.get_docstring(tree) or "").partition("\n\n")
    lines = [f"## {dotted}", "", title, "", *paragraphs(text), ""]
    for node in _public(dotted, tree):
        lines += _class(node) if isinstance(node, ast.ClassDef) else _function(node, "###")
    return lines


def _parse(dotted: str) -> ast.Module:
    return ast.parse(_file(dotted).read_text())


def _file(dotted: str) -> Path:
    path = SOURCE.joinpath(*dotted.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _public(dotted: str, tree: ast.Module) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """The public classes and functions: those of `__all__`, wherever they are defined, or those
    that the module defines itself and that have a docstring."""
    exported = _exported(tree)
    if exported is None:
        yield from (
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
            and not node.name.startswith("_")
            and ast.get_docstring(node)
        )
        return
    homes = _imported_from(tree)
    for name in exported:
        home = homes.get(name)
        node = _definition(home, name) if home else _definition(dotted, name)
        # The plain data of the top level has pages of its own.
        if node is not None and not (dotted == "tilewright" and home not in _OWN):
            yield node


_OWN = ("tilewright.api",)


def _exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def _imported_from(tree: ast.Module) -> dict[str, str]:
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _definition(dotted: str, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    tree = _parse(dotted)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    home = _imported_from(tree).get(name)
    if home is None or home == dotted or not home.startswith("tilewright"):
        return None
    return _definition(home, name)


# The primitives of a stage and of a schedule are spread over classes that these inherit.
_SHOWN_AS = {
    "LoopPrimitives": "Stage",
    "ExecutionPrimitives": "Stage",
    "PlacementPrimitives": "Stage",
    "StoragePrimitives": "Stage",
    "DataflowPrimitives": "Schedule",
}


def _class(node: ast.ClassDef) -> list[str]:
    bases = [ast.unparse(b) for b in node.bases if ast.unparse(b) not in ("Protocol", "ABC")]
    lines = [f"### class {node.name}" + (f"({', '.join(bases)})" if bases else ""), ""]
    lines += [*paragraphs(ast.get_docstring(node) or ""), ""]
    fields = [
        f"    {ast.unparse(part)}"
        for part in node.body
        if isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).startswith("_")
    ]
    values = [
        f"    {ast.unparse(part)}"
        for part in node.body
        if isinstance(part, ast.Assign) and any("Enum" in base for base in bases)
    ]
    if fields or values:
        lines += ["```python", *map(_shortened, fields or values), "```", ""]
    for part in node.body:
        public = isinstance(part, ast.FunctionDef) and not part.name.startswith("_")
        started = isinstance(part, ast.FunctionDef) and part.name == "__init__"
        if isinstance(part, ast.FunctionDef) and (public or started):
            lines += _function(part, "####", _SHOWN_AS.get(node.name, node.name))
    return lines


def _shortened(field: str) -> str:
    """A field without the metadata of `dataclasses.field`."""
    return re.sub(r" = field\(.*\)$", " = ...", field, flags=re.DOTALL)


def _function(node: ast.FunctionDef, level: str, owner: str = "") -> list[str]:
    decorators = {ast.unparse(d) for d in node.decorator_list}
    is_property = bool(decorators & {"property", "cached_property", "functools.cached_property"})
    shown = owner if node.name == "__init__" else f"{owner}.{node.name}" if owner else node.name
    bound = owner and "staticmethod" not in decorators
    arguments = _without_self(node.args) if bound else node.args
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    if is_property:
        signature = f"{shown}: {ast.unparse(node.returns)}" if node.returns else shown
    else:
        signature = _wrapped(shown, arguments, returns)
    lines = [f"{level} {shown}", "", "```python", *signature.splitlines(), "```", ""]
    return [*lines, *paragraphs(ast.get_docstring(node) or ""), ""]


def _without_self(arguments: ast.arguments) -> ast.arguments:
    copy = ast.arguments(**dict(ast.iter_fields(arguments)))
    if copy.posonlyargs:
        copy.posonlyargs = copy.posonlyargs[1:]
    else:
        copy.args = copy.args[1:]
    return copy


def _wrapped(name: str, arguments: ast.arguments, returns: str) -> str:
    """The signature on one line, or one argument a line when it is long."""
    line = f"{name}({ast.unparse(arguments)}){returns}"
    if len(line) <= 92:
        return line
    parts = _parts(arguments)
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])


def _parts(arguments: ast.arguments) -> list[str]:
    plain = [*arguments.posonlyargs, *arguments.args]
    gaps = len(plain) - len(arguments.defaults)
    defaults = [None] * gaps + list(arguments.defaults)
    parts = [_argument(a, d) for a, d in zip(plain, defaults, strict=True)]
    if arguments.vararg:
        parts.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    parts += [_argument(a, d) for a, d in pairs]
    return parts + ([f"**{ast.unparse(arguments.kwarg)}"] if arguments.kwarg else [])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else "")


def _page(lines: list[str]) -> str:
    """The lines as a page: no trailing blanks, never two empty lines in a row."""
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in lines))
    return text.strip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
