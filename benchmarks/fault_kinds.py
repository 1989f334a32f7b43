"""What tilewright reads, with the commands that read it; and command lines drawn by chance."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What is read: `files` are those that are changed, one in each case; `commands` read them, and
    `slow`, which take seconds where the file is still good and are drawn a quarter as often.

    In commands `{f}` is the changed file, `{d}` the folder that it is in, `{s}` the folder of what
    is good, `{o}` where the command may write.
    """

    name: str
    files: tuple[str, ...]
    commands: tuple[str, ...]
    weight: int = 1
    slow: tuple[str, ...] = ()

    @property
    def drawn(self) -> tuple[str, ...]:
        """Commands, each as often as it is drawn."""
        return 4 * self.commands + self.slow


#: What goes on until it is interrupted.
SERVING = (("watch",), ("worker",), ("cluster", "scheduler"))
_TRIAL = "--max-trials 1 --effort quick --variants default --no-report --time-limit 15s"
KINDS = (
    Kind(
        "MLIR",
        (
            "small.mlir",
            "weights.mlir",
            "examples/matmul.mlir",
            "small.mlirbc",
        ),
        (
            "inspect {f}",
            "tune {f} --dry-run",
            "run {f} --timeout 20s",
            "spec strip {f}",
            "bench {f} --min-time 1ms --timeout 20s",
            "apply {f} {s}/tuned -o {o}/p.vmfb",
            "db explain {f} --db {o}/x.db",
            "spec check {s}/tuned/tuning_spec.mlir --program {f}",
        ),
        6,
    ),
    Kind(
        "MLIR of networks",
        ("examples/mlp.mlir", "examples/convnet.mlir"),
        ("spec strip {f}",),
        slow=("inspect {f}", "run {f} --timeout 20s", "trace {f} -o {o}/trace.json"),
    ),
    Kind("ONNX", ("small.onnx",), ("inspect {f}", "run {f} --timeout 20s"), 2),
    Kind("PyTorch program", ("small.pt2",), ("inspect {f}", "run {f} --timeout 20s")),
    Kind(
        "spec",
        ("tuned/tuning_spec.mlir", "kernels/tuning_spec.mlir", "kernels/preprocessing_spec.mlir"),
        (
            "spec show {f}",
            "spec check {f}",
            "spec merge {f} {s}/tuned/tuning_spec.mlir -o {o}/merged.mlir",
            "specs push {o}/library {f}",
            f"tune {{s}}/product.mlir {_TRIAL} --start-spec {{f}} --db {{o}}/x.db --dry-run",
        ),
        3,
        (
            "apply {s}/product.mlir {f} -o {o}/p.vmfb",
            "run {s}/product.mlir --spec {f} --timeout 20s",
            f"tune {{s}}/product.mlir {_TRIAL} --start-spec {{f}} --db {{o}}/x.db -o {{o}}/tuned",
        ),
    ),
    Kind(
        "library of specs",
        ("library/*",),
        ("spec library {d}", "specs pull {d} -o {o}/library", "specs push {d} {s}/tuned"),
        2,
        (f"tune {{s}}/product.mlir {_TRIAL} --library {{d}} --db {{o}}/x.db -o {{o}}/tuned",),
    ),
    Kind(
        "result folder",
        tuple(
            f"tuned/{name}"
            for name in ("summary.json", "manifest.json", "trials.csv", "command.txt", "run.log")
        ),
        ("report {d} --no-peak -o {o}/page.html", "specs push {o}/library {d}"),
        3,
        (
            "apply {s}/product.mlir {d} -o {o}/p.vmfb",
            "run {s}/product.mlir --spec {d} --timeout 20s",
            f"tune {{s}}/product.mlir {_TRIAL} --db {{o}}/x.db -o {{d}} --dry-run",
            f"tune {{s}}/product.mlir {_TRIAL} --db {{o}}/x.db --start-spec {{d}} --dry-run",
            "ci check {d} --program {s}/product.mlir --compile-only",
            "ci check {d} --compile-only",
        ),
    ),
    Kind(
        "configuration file",
        ("auto-scheduler.cfg", "config.json"),
        (
            "tune --config {f} --dry-run",
            "config show",
            "tune {s}/small.mlir --config {f} --dry-run",
        ),
        2,
    ),
    Kind("project options", ("pyproject.toml",), ("config show", "config show --json")),
    Kind(
        "database",
        ("tuned.db",),
        (
            "db list --db {f}",
            "db export {o}/all.jsonl --db {f}",
            "db prune --older-than 1s --db {f}",
            "db import {s}/all.jsonl --db {f}",
            "db merge {f} --db {o}/x.db",
            "db verify --db {f}",
            "db gc --db {f}",
            "db explain contraction --db {f}",
        ),
        3,
        (f"tune {{s}}/product.mlir {_TRIAL} --db {{f}} --resume -o {{o}}/tuned",),
    ),
    Kind("exported results", ("all.jsonl",), ("db import {f} --db {o}/x.db",), 2),
    Kind(
        "recorded space",
        ("space.npz",),
        (
            "replay show {f}",
            "replay score {f} --strategy random --runs 2 --jobs 1",
            "replay export {f} --t4 {o}/t4.json",
        ),
        2,
    ),
    Kind("T4 results", ("t4.json",), ("replay import {f} -o {o}/space.npz",)),
    Kind(
        ".npy input",
        ("a.npy", "ints.npy"),
        (
            "run {s}/small.vmfb --input @{f} --input 24x8xf32=1 --timeout 20s",
            "run {s}/small.vmfb --input 16x24xf32=1 --input 24x8xf32=1 --expected {f}",
        ),
        2,
        ("tune {s}/small.mlir --input @{f} --input 24x8xf32=1 --dry-run",),
    ),
    Kind(
        "parameters",
        ("w.irpa", "w.safetensors", "w.gguf"),
        ("run {s}/weights.vmfb --parameters model={f} --timeout 20s",),
        2,
        ("run {s}/weights.mlir --parameters model={f} --timeout 20s",),
    ),
    Kind(
        "comparison results",
        ("compared.json", "compared.csv"),
        (
            "compare diff {f} {s}/compared.json",
            "compare diff {s}/compared.csv {f}",
            "report --compare {f} -o {o}/page.html",
        ),
    ),
    Kind(
        "shapes",
        ("shapes.json",),
        (
            "compare run {f} --providers numpy --rounds 6 --max-time 1s --no-peak",
            "profile generate --generated-dir {o} --shapes {f}",
        ),
    ),
    Kind("events", ("events.jsonl",), ("watch {f}",)),
    Kind(
        "exchange folder",
        ("exchange/*",),
        (
            "measure {d} --limit 5 --quiet",
            f"tune {{s}}/product.mlir {_TRIAL} --db {{o}}/x.db --runner dir:{{d}} --dry-run",
        ),
        2,
    ),
    Kind(
        "profile folder",
        ("profile/*",),
        (
            "profile compile --generated-dir {d}",
            "profile run --generated-dir {d} --timeout 20s --repetitions 1",
        ),
    ),
    Kind("schedule", ("schedule.json",), ("schedule {f}",), 2),
    Kind(
        "compiled module",
        ("small.vmfb",),
        ("run {f} --timeout 20s", "bench {f} --min-time 1ms --timeout 20s"),
    ),
    Kind(
        "cluster certificates",
        ("certs/*",),
        ("cluster certs {d}", "cluster scheduler --port 0 --certs {d}"),
        slow=("cluster status tls://127.0.0.1:9 --certs {d}",),
    ),
    Kind("command line", (), (), 3),
)


_ARGUMENTS = (
    *("small.mlir", "a.npy", "tuned", "tuned.db", "nothing.mlir", "/", ".", "..", "-", "--"),
    *("-1", "0", "1e9", "99999999999999999999", "nan", "10s", "-5m", "1x1xf32", "16x24xf32=1"),
    *("@a.npy", "@", "=", "model=", "=x", "cpu", "cuda:sm_80", "cpu:nothing", "tcp://", "dir:"),
    *("ssh:", "dir:/proc", "file\udcff", "2x", "90%peak", "no-gain:5m", "default,x=", "[", "("),
    *("*", ".*"),
)


def sources(seeds: Path, kind: Kind) -> list[str]:
    """The good files of a kind that there are.

    Args:
        seeds: the folder of good files.
        kind: what is read.
    """
    found = []
    for pattern in kind.files:
        if pattern.endswith("/*") and (seeds / pattern[:-2]).exists():
            inside = (seeds / pattern[:-2]).rglob("*")
            found += [str(p.relative_to(seeds)) for p in inside if p.is_file()]
        elif (seeds / pattern).exists():
            # A run on a machine where no kernel is faster leaves no preprocessing spec.
            found.append(pattern)
    return found


def command_lines(count: int, seed: int) -> list[tuple[str, ...]]:
    """Command lines that hypothesis draws of the commands and options that there are.

    Args:
        count: how many at most.
        seed: of chance.
    """
    import click
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis import strategies as st

    from tilewright.cli.main import commands

    known: list[tuple[tuple[str, ...], list[str]]] = []

    def walk(command: click.Command, path: tuple[str, ...]) -> None:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None:
                    walk(inner, (*path, name))
        else:
            options = [o for p in command.params for o in p.opts if o.startswith("-")]
            known.append((path, options))

    walk(commands, ())
    # What measures the machine for a minute is not tried with good options.
    left = [one for one in known if one[0][0] not in ("devices", "doctor", "measure")]
    words = st.one_of(
        st.text(max_size=20).filter(lambda t: "\0" not in t and _encodes(t)),
        st.sampled_from(_ARGUMENTS),
        st.integers().map(str),
        st.floats().map(str),
    )

    @st.composite
    def line(draw: Any) -> tuple[str, ...]:
        path, options = draw(st.sampled_from(left))
        found = list(path)
        for _ in range(draw(st.integers(0, 4))):
            if options and draw(st.booleans()):
                option = draw(st.sampled_from(options))
                found.append(option if draw(st.booleans()) else f"{option}={draw(words)}")
            else:
                found.append(draw(words))
        return tuple(found)

    drawn: list[tuple[str, ...]] = []

    @seeded(seed)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(line())
    def collect(one: tuple[str, ...]) -> None:
        drawn.append(one)

    collect()
    return drawn


def _encodes(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True
