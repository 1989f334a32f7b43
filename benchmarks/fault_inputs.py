"""Hostile input for everything that tilewright reads, and what became of each.

Good files of every kind are made once, by tilewright's own commands. A case is a variant of one of
them, and a command that reads it, in a folder and a home folder of its own. It has to end within
its limit, with exit status 0 or one line that says what is wrong, with nothing executed and no file
touched but those that it was told to write.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import select
import shutil
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fault_mutations import mutated

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

import warm_start  # noqa: E402

# Seconds on a machine that has its processors for this alone; on one with other work by so much
# more as that work takes.
LIMIT_S = 60.0
_EXECUTED = "EXECUTED"
# What a command may say of a fault that is its own: 0, an error of the user's, findings.
_STATUSES = (0, 2, 3)
# Where tilewright keeps what it keeps of itself.
_OWN = (".cache/tilewright", ".local/share/tilewright")
_DUMPS = ("Traceback (most recent call last)", "Stack dump:", "PLEASE submit a bug report")

_PRODUCT = """func.func @main(%a: tensor<{m}x{k}xf32>, %b: tensor<{k}x{n}xf32>)
    -> tensor<{m}x{n}xf32> {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{m}x{n}xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %c = linalg.matmul ins(%a, %b : tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>)
      outs(%f : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  return %c : tensor<{m}x{n}xf32>
}}
"""


def product(m: int, n: int, k: int) -> str:
    """A program of one product of matrices."""
    return _PRODUCT.format(m=m, n=n, k=k)


SMALL = product(16, 8, 24)
# Large enough that its dispatch has most of its time, also on a busy machine.
TUNED = product(192, 160, 256)
WEIGHTS = """util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<8xf32>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %w = util.global.load @w : tensor<8xf32>
  %r = arith.addf %x, %w : tensor<8xf32>
  return %r : tensor<8xf32>
}
"""
PROJECT = """[tool.tilewright]
effort = "quick"
max-trials = 4
iree-flag = ["--iree-opt-level=O2"]
threads = 1
"""
SHAPES = """[{"kind": "matmul", "m": 8, "n": 8, "k": 8, "types": "f32"}]
"""


@dataclass(frozen=True)
class Kind:
    """What is read: `files` are those that are changed, one in each case; `commands` read them.

    In commands `{f}` is the changed file, `{d}` the folder that it is in, `{s}` the folder of what
    is good, `{o}` where the command may write.
    """

    name: str
    files: tuple[str, ...]
    commands: tuple[str, ...]
    weight: int = 1


_TRIAL = "--max-trials 1 --effort quick --variants default --no-report --time-limit 15s"
KINDS = (
    Kind(
        "MLIR",
        (
            "small.mlir",
            "weights.mlir",
            "examples/matmul.mlir",
            "examples/mlp.mlir",
            "examples/convnet.mlir",
            "small.mlirbc",
        ),
        (
            "inspect {f}",
            "tune {f} --dry-run",
            "run {f} --timeout 20s",
            "spec strip {f}",
            "bench {f} --min-time 1ms --timeout 20s",
            "apply {f} {s}/tuned -o {o}/p.vmfb",
        ),
        6,
    ),
    Kind("ONNX", ("small.onnx",), ("inspect {f}", "run {f} --timeout 20s"), 2),
    Kind(
        "spec",
        ("tuned/tuning_spec.mlir", "kernels/tuning_spec.mlir", "kernels/preprocessing_spec.mlir"),
        (
            "spec show {f}",
            "spec check {f}",
            "spec merge {f} {s}/tuned/tuning_spec.mlir -o {o}/merged.mlir",
            "apply {s}/product.mlir {f} -o {o}/p.vmfb",
            "run {s}/product.mlir --spec {f} --timeout 20s",
        ),
        3,
    ),
    Kind(
        "result folder",
        tuple(
            f"tuned/{name}"
            for name in ("summary.json", "manifest.json", "trials.csv", "command.txt", "run.log")
        ),
        (
            "report {d} --no-peak -o {o}/page.html",
            "apply {s}/product.mlir {d} -o {o}/p.vmfb",
            "run {s}/product.mlir --spec {d} --timeout 20s",
            f"tune {{s}}/product.mlir {_TRIAL} --db {{o}}/x.db -o {{d}} --dry-run",
        ),
        3,
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
            f"tune {{s}}/product.mlir {_TRIAL} --db {{f}} --resume -o {{o}}/tuned",
        ),
        3,
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
            "run {s}/small.mlir --input @{f} --input 24x8xf32=1 --timeout 20s",
            "run {s}/small.mlir --input 16x24xf32=1 --input 24x8xf32=1 --expected {f}",
            "tune {s}/small.mlir --input @{f} --input 24x8xf32=1 --dry-run",
        ),
        2,
    ),
    Kind(
        "parameters",
        ("w.irpa", "w.safetensors", "w.gguf"),
        ("run {s}/weights.mlir --parameters model={f} --timeout 20s",),
        2,
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
    Kind("events", ("events.jsonl",), ("!watch {f}",)),
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
            "profile run --generated-dir {d} --timeout 20s",
        ),
    ),
    Kind("schedule", ("schedule.json",), ("!schedule {f}",), 2),
    Kind(
        "compiled module",
        ("small.vmfb",),
        ("run {f} --timeout 20s", "bench {f} --min-time 1ms --timeout 20s"),
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


class Evil:
    """What is executed where a pickle is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {_EXECUTED}",)


def hand_made(folder: Path) -> dict[str, list[Path]]:
    """Files that try one thing each, by the kind that they are for.

    Args:
        folder: where they are written.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def put(name: str, content: bytes | str) -> Path:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
        return folder / name

    evil = np.empty(3, object)
    evil[:] = [Evil(), 1, 2]
    pickled, archive = io.BytesIO(), io.BytesIO()
    np.save(pickled, evil, allow_pickle=True)
    np.savez(archive, header=evil, status=evil)
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        huge, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 1 << 20)}
    )
    named = '#hal.executable.object<{path = "/etc/passwd"}>'
    deep = "tensor<" + "tuple<" * 50_000
    return {
        "MLIR": [
            put("deep.mlir", f"func.func @main(%a: {deep}"),
            put("regions.mlir", "module {" * 50_000),
            put("attribute.mlir", "module attributes {a = " + "[" * 100_000),
            put("empty.mlir", ""),
            put("zeros.mlir", b"\0" * 65536),
            put("bytecode.mlir", b"ML\xefR" + b"\xff" * 100),
            put("objects.mlir", f"module attributes {{o = {named}}} {{}}"),
            put("big.mlir", "func.func @main() -> tensor<1099511627776x1048576xf32>"),
            put(
                "memory.mlir",
                "func.func @main() -> tensor<68719476736xf32> {\n"
                " %c = arith.constant dense<1.0> : tensor<68719476736xf32>\n"
                " return %c : tensor<68719476736xf32>\n}\n",
            ),
            put(
                "spins.mlir",
                "func.func @main(%n: i32) -> i32 {\n cf.br ^a\n^a:\n cf.br ^a\n}\n",
            ),
        ],
        "ONNX": [put("empty.onnx", b""), put("pickle.onnx", pickle.dumps(Evil()))],
        ".npy input": [
            put("pickled.npy", pickled.getvalue()),
            put("huge.npy", huge.getvalue()),
            put("pickle.npy", pickle.dumps(Evil())),
        ],
        "recorded space": [
            put("pickled.npz", archive.getvalue()),
            put("bomb.npz", _bomb()),
        ],
        "schedule": [put("deep.json", "[" * 200_000), put("number.json", "9" * 10_000)],
        "comparison results": [put("deep-results.json", '{"a":' * 200_000)],
        "shapes": [put("deep-shapes.json", "[" * 200_000)],
        "exported results": [put("deep.jsonl", "[" * 200_000), put("long.jsonl", "9" * 10_000)],
        "project options": [put("deep.toml", "a = " + "[" * 100_000)],
        "T4 results": [put("deep-t4.json", "[" * 200_000)],
        "parameters": [
            put("long.safetensors", struct.pack("<Q", 1 << 60) + b"{}"),
            put("deep.safetensors", struct.pack("<Q", 100_000) + b"[" * 100_000),
        ],
    }


def _bomb() -> bytes:
    """An archive whose array is far larger than it."""
    import zipfile

    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": (1 << 31,)}
    )
    made = io.BytesIO()
    with (
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("header.npy", "w") as f,
    ):
        f.write(head.getvalue())
        for _ in range(256):
            f.write(b"\0" * (1 << 20))
    return made.getvalue()


# -- what is good ----------------------------------------------------------------------------------


def make_seeds(folder: Path, runs: bool = True) -> None:
    """Write good files of every kind; what is there stays.

    Args:
        folder: where they go.
        runs: also what it takes runs of tilewright to make.
    """
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "home").mkdir(parents=True)
    shutil.copytree(REPOSITORY / "examples", folder / "examples")
    texts = {
        "small.mlir": SMALL,
        "product.mlir": TUNED,
        "weights.mlir": WEIGHTS,
        "pyproject.toml": PROJECT,
        "shapes.json": SHAPES,
        "auto-scheduler.cfg": (folder / "examples/auto-scheduler.cfg").read_text(),
        "config.json": '{"Env": {"input_file": "small.mlir"}, "SearchStrategy": {"n_trial": 2}}',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    np.save(folder / "a.npy", np.ones((16, 24), np.float32))
    np.save(folder / "ints.npy", np.ones((16, 8), np.int64))
    _make_parameters(folder)
    _make_onnx(folder / "small.onnx")
    _make_schedule(folder / "schedule.json")
    _make_bytecode(folder)
    shutil.copy(
        REPOSITORY / "src/tilewright/replay/data/row_sums_1024x4096.npz", folder / "space.npz"
    )
    if not runs:
        (folder / "done").touch()
        return
    quick = "--effort quick --variants default --time-limit 60s --max-trials 6"
    for line in (
        f"tune product.mlir {quick} --kernels off --db tuned.db --events events.jsonl -o tuned",
        f"tune product.mlir {quick} --kernels only --db kernels.db -o kernels",
        "db export all.jsonl --db tuned.db",
        "compare run --matmul 8x8x8:f32 --providers iree,numpy --rounds 6 --max-time 1s --no-peak "
        "-o compared.json",
        "compare run --matmul 8x8x8:f32 --providers iree,numpy --rounds 6 --max-time 1s --no-peak "
        "-o compared.csv",
        "replay export space.npz --t4 t4.json",
        "profile generate --generated-dir profile --kind matmul --problem-m=8 --problem-n=8 "
        "--problem-k=8 --types f32",
        "profile compile --generated-dir profile",
        "run small.mlir --save small.vmfb",
    ):
        found = run_command(line.split(), folder, folder / "home", 300)
        if found.status != 0:
            raise RuntimeError(f"{line}: {found.status}: {found.err}")
    # What is asked of another machine, which never answers.
    asked = f"tune product.mlir {quick} --db asked.db --runner dir:exchange -o asked"
    run_command(asked.split(), folder, folder / "home", 300, lambda: _asked(folder))
    for path in [folder / "asked.db", *folder.glob("*-wal"), *folder.glob("*-shm")]:
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / "asked", ignore_errors=True)
    (folder / "done").touch()


def _asked(folder: Path) -> bool:
    return any((folder / "exchange").glob("batch_*/manifest.json"))


def _make_parameters(folder: Path) -> None:
    import iree.runtime as rt

    values = np.arange(8, dtype=np.float32)
    index = rt.ParameterIndex()
    index.add_buffer("w", values)
    index.create_archive_file(str(folder / "w.irpa"))
    head = json.dumps({"w": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    (folder / "w.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + values.tobytes())
    # GGUF, version 3: one tensor of f32, no metadata.
    info = struct.pack("<Q", 1) + b"w" + struct.pack("<IQIQ", 1, 8, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + info
    (folder / "w.gguf").write_bytes(head + b"\0" * (-len(head) % 32) + values.tobytes())


def _make_onnx(path: Path) -> None:
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        path.write_bytes(b"\x08\x08\x12\x00")
        return
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])
    weights = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def _make_schedule(path: Path) -> None:
    from tilewright import te

    a = te.placeholder((16, 24), name="A")
    b = te.placeholder((24, 8), name="B")
    k = te.reduce_axis(24, "k")
    c = te.compute((16, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    schedule = te.create_schedule(c)
    i, j = c.op.axis
    outer, inner = schedule[c].split(i, 4)
    schedule[c].reorder(outer, j, k, inner)
    schedule[c].unroll(inner)
    path.write_text(schedule.trace().to_json())


def _make_bytecode(folder: Path) -> None:
    from iree.compiler import ir

    with ir.Context():
        module = ir.Module.parse(SMALL)
        with (folder / "small.mlirbc").open("wb") as file:
            module.operation.write_bytecode(file)


# -- running a command -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a command ended; `status` None: not within its limit."""

    status: int | None
    out: str
    err: str
    seconds: float


def environment(home: Path) -> dict[str, str]:
    """Variables of a command with a home folder of its own.

    Args:
        home: the folder.
    """
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    kept = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "dumb"}
    return {**kept, "HOME": str(home), "TMPDIR": str(home / "tmp"), "COLUMNS": "200"}


def run_command(
    arguments: Sequence[str],
    folder: Path,
    home: Path,
    limit_s: float,
    enough: Callable[[], bool] = lambda: False,
    script: str = "",
) -> Ended:
    """Run `tilewright` with these arguments, forked from a process that has imported it.

    Args:
        arguments: of the command line.
        folder: to run in.
        home: its home folder.
        limit_s: seconds after which it is killed.
        enough: asked now and then; once it is true the command is interrupted as by Ctrl-C twice.
        script: a Python file to run in the command's place.
    """
    files = [os.memfd_create(name) for name in ("stdout", "stderr")]
    began = time.monotonic()
    try:
        start = warm_start.Start(
            tuple(arguments),
            environment(home),
            str(folder),
            tuple(files),
            os.getpid(),
            module="" if script else "tilewright",
            script=script,
        )
        process = warm_start.warm_process().fork(start)
        status = _wait(process.pid, began + limit_s, enough)
        out, err = (os.pread(f, min(os.fstat(f).st_size, 1 << 20), 0) for f in files)
    finally:
        for file in files:
            os.close(file)
    took = time.monotonic() - began
    return Ended(status, out.decode(errors="replace"), err.decode(errors="replace"), took)


def _wait(pid: int, deadline: float, enough: Callable[[], bool]) -> int | None:
    """The exit status, or None of a process that had to be killed."""
    handle = os.pidfd_open(pid)
    killed = False
    try:
        while not select.select([handle], [], [], 0.2)[0]:
            if time.monotonic() > deadline:
                killed = True
                os.kill(pid, signal.SIGKILL)
            elif enough():
                os.kill(pid, signal.SIGINT)
    finally:
        os.close(handle)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None if killed else status


# -- cases -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One hostile input: of a kind, made of `source` (or given as it is), read by `command`."""

    number: int
    kind: str
    source: str
    command: tuple[str, ...]
    seed: int
    given: Path | None = None


@dataclass
class Verdict:
    """What a case showed; `faults` is empty where all is as it should be."""

    case: Case
    status: int | None
    seconds: float
    message: str
    faults: list[str] = field(default_factory=list)


def cases(seeds: Path, count: int, seed: int) -> Iterator[Case]:
    """Cases in a fixed order: the same number and seed make the same case.

    Args:
        seeds: the folder of good files.
        count: how many.
        seed: of chance.
    """
    chance = random.Random(seed)
    made = hand_made(seeds.parent / "hand-made")
    number = 0
    by_name = {kind.name: kind for kind in KINDS}
    for name, paths in made.items():
        for path in paths:
            for command in by_name[name].commands:
                if number < count:
                    yield Case(number, name, path.name, tuple(command.split()), number, path)
                    number += 1
    lines = command_lines(count, seed)
    there = [kind for kind in KINDS if kind.name == "command line" or _sources(seeds, kind)]
    weighted = [kind for kind in there for _ in range(kind.weight)]
    while number < count:
        kind = chance.choice(weighted)
        own = chance.randrange(1 << 62)
        if kind.name == "command line":
            yield Case(number, kind.name, "", lines[number % len(lines)], own)
        else:
            source = chance.choice(sorted(_sources(seeds, kind)))
            command = tuple(chance.choice(kind.commands).split())
            yield Case(number, kind.name, source, command, own)
        number += 1


def _sources(seeds: Path, kind: Kind) -> list[str]:
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
    # What listens, or measures the machine for a minute, is not tried with good options.
    left = [one for one in known if one[0][0] not in ("watch", "devices", "doctor", "measure")]
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


def limit_s() -> float:
    """How long a command may take on this machine as it is now."""
    return LIMIT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def run_case(case: Case, seeds: Path, folder: Path) -> Verdict:
    """Make a case's input, run its command, and see what became of it.

    Args:
        case: what to try.
        seeds: the folder of good files, which is to stay as it is.
        folder: a folder for this case alone; it is made anew.
    """
    shutil.rmtree(folder, ignore_errors=True)
    home, here, output = folder / "home", folder / "here", folder / "out"
    for one in (home, here, output):
        one.mkdir(parents=True)
    (home / "private.txt").write_text("must stay as it is")
    (here / "beside.txt").write_text("must stay as it is")
    place, owner = _place(case, seeds, here)
    values = {"f": str(place), "d": str(owner), "s": str(seeds), "o": str(output)}
    arguments = [_filled(word, values) for word in case.command]
    script = ""
    if arguments and arguments[0] == "!schedule":
        script, arguments = str(REPOSITORY / "benchmarks" / "fault_schedule.py"), arguments[1:]
    before = _snapshot([home, seeds, folder.parent / "hand-made"], seeds)
    if arguments and arguments[0] == "!watch":
        until = time.monotonic() + 1.0
        ended = run_command(
            ["watch", *arguments[1:]], here, home, limit_s(), lambda: time.monotonic() > until
        )
        statuses: tuple[int, ...] = (0, 2, 130)
    else:
        ended = run_command(arguments, here, home, limit_s(), script=script)
        statuses = _STATUSES
    verdict = Verdict(case, ended.status, ended.seconds, _last_line(ended.err))
    verdict.faults += _faults_of_end(ended, statuses)
    after = _snapshot([home, seeds, folder.parent / "hand-made"], seeds)
    touched = sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    if touched:
        verdict.faults.append(f"touched {', '.join(touched[:5])}")
    if any(folder.rglob(_EXECUTED)) or any(seeds.rglob(_EXECUTED)):
        verdict.faults.append("executed")
    if ended.status is not None and any((home / "tmp").iterdir()):
        verdict.faults.append("left temporary files")
    if case.kind != "command line":
        strays = [p.name for p in here.iterdir() if p.name not in _placed(place, owner, here)]
        if strays:
            verdict.faults.append(f"wrote {', '.join(strays[:5])} beside its input")
    return verdict


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _place(case: Case, seeds: Path, here: Path) -> tuple[Path, Path]:
    """Write the case's input; its path, and the folder that a command may be given."""
    chance = random.Random(case.seed)
    if case.kind == "command line":
        for one in (seeds / name for name in ("small.mlir", "a.npy", "tuned.db", "tuned")):
            if one.is_dir():
                shutil.copytree(one, here / one.name)
            elif one.exists():
                shutil.copy(one, here / one.name)
        return here / "small.mlir", here
    if case.given is not None:
        name = "pyproject.toml" if case.kind == "project options" else case.given.name
        shutil.copy(case.given, here / name)
        return here / name, here
    source = seeds / case.source
    top = Path(case.source).parts[0]
    if len(Path(case.source).parts) > 1 and top != "examples":
        shutil.copytree(seeds / top, here / top)
        place, owner = here / case.source, here / top
    else:
        place, owner = here / source.name, here
    changed = mutated(source.read_bytes(), chance, _suffix_of(source))
    if chance.random() < 0.02:
        place.unlink(missing_ok=True)
        _odd_place(place, chance)
    else:
        place.write_bytes(changed)
    return place, owner


def _odd_place(place: Path, chance: random.Random) -> None:
    """Something that is there and no file."""
    kind = chance.randrange(4)
    if kind == 0:
        place.mkdir()
    elif kind == 1:
        place.symlink_to(place)
    elif kind == 2:
        place.symlink_to("/dev/null")


def _suffix_of(path: Path) -> str:
    return ".txt" if path.suffix in (".log", "") else path.suffix


def _placed(place: Path, owner: Path, here: Path) -> set[str]:
    """Names in the folder that are there by right: the input, and what goes with a database."""
    names = {"beside.txt", place.name, *(f"{place.name}{s}" for s in ("-wal", "-shm", "-journal"))}
    return names if owner == here else names | {owner.name}


def _faults_of_end(ended: Ended, statuses: tuple[int, ...]) -> list[str]:
    found = []
    said = ended.out + ended.err
    if ended.status is None:
        found.append(f"hung: not done after {ended.seconds:.0f} s")
    elif ended.status not in statuses:
        found.append(f"ended with status {ended.status}")
    if "internal error" in ended.err:
        found.append("internal error")
    found += [f"printed '{dump}'" for dump in _DUMPS if dump in said]
    errors = [line for line in ended.err.splitlines() if line.startswith("error:")]
    if ended.status == 2 and len(errors) != 1:
        found.append(f"{len(errors)} lines of errors")
    if any(len(line) > 4000 for line in errors):
        found.append(f"an error of {max(map(len, errors))} characters")
    return found


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _snapshot(folders: Sequence[Path], seeds: Path) -> dict[str, tuple[int, str]]:
    """What every file is, but for what tilewright keeps of its own."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            name = str(path.relative_to(folder))
            if not path.is_file() or name.startswith((*_OWN, "tmp/", "home/")):
                continue
            status = path.stat()
            key = f"{folder.name}/{name}"
            if folder == seeds:
                found[key] = (status.st_size, str(status.st_mtime_ns))
            else:
                found[key] = (status.st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    return found
