"""Kernels of a spec that are one dispatch where they follow each other."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
import pytest
from click.testing import CliRunner
from iree.compiler import ir

from kernel_specs import TARGET, Compiler, function, pointwise, programs, random, same, spec_kernel
from tilewright import te
from tilewright.cli.main import commands
from tilewright.ir.piece_claims import BoundPlace
from tilewright.ir.sequences import FoundSequence, find_sequences
from tilewright.ir.stages import plan_sequence, stage_kernels
from tilewright.ir.walk import symbols, walk
from tilewright.measure.jobs import WorkerState
from tilewright.schedule.in_place import replaceable
from tilewright.sketch.interface import SketchedKernel
from tilewright.sketch.spec import write_kernel_spec
from tilewright.sketch.spec_code import compile_into
from tilewright.spec import library
from tilewright.spec.join import join_specs
from tilewright.spec.read import check_spec
from tilewright.spec.sequences import add_sequences

SHAPE = (48, 32)
TEXT = "x".join(map(str, SHAPE))
TYPE = f"tensor<{TEXT}xf32>"
SUM = "%r = arith.addf %p, %q : f32"


@pytest.fixture(scope="module")
def state() -> WorkerState:
    return WorkerState()


def added(name: str, left: str, right: str) -> str:
    """The sum of two matrices, as an op of the program."""
    return f"""
      %{name}_e = tensor.empty() : {TYPE}
      %{name} = linalg.generic {{
          indexing_maps = [{", ".join(["affine_map<(i, j) -> (i, j)>"] * 3)}],
          iterator_types = ["parallel", "parallel"]}}
        ins({left}, {right} : {TYPE}, {TYPE}) outs(%{name}_e : {TYPE}) {{
      ^bb0(%p: f32, %q: f32, %o: f32):
        {SUM}
        linalg.yield %r : f32
      }} -> {TYPE}"""


def sums(pieces: int) -> tuple[str, SketchedKernel]:
    """A site that adds two matrices, and a kernel for it with so many pieces."""
    site = function(f"%x: {TYPE}, %y: {TYPE}", "%z", TYPE, added("z", "%x", "%y"))
    x, y = (te.placeholder(SHAPE, "f32", name=name) for name in "xy")
    z = te.compute(SHAPE, lambda i, j: x[i, j] + y[i, j], name="z")
    schedule = te.create_schedule(z)
    outer, _ = schedule[z].split(z.op.axis[0], -(-SHAPE[0] // pieces))
    schedule[z].parallel(outer)
    return site, SketchedKernel(schedule, (x, y, z), {})


def doubled(pieces: int, length: int = 1) -> tuple[str, SketchedKernel]:
    """A site that doubles a matrix; its kernel takes about `length` times as long as it must."""
    site = function(
        f"%x: {TYPE}", "%y", TYPE, pointwise("y", "%x", "%r = arith.addf %p, %p : f32", TEXT)
    )
    x = te.placeholder(SHAPE, "f32", name="x")
    k = te.reduce_axis(length, "k")
    scale = 2.0 / length
    y = te.compute(SHAPE, lambda i, j: te.sum(x[i, j] * scale, axis=k), name="y")
    schedule = te.create_schedule(y)
    outer, _ = schedule[y].split(y.op.axis[0], -(-SHAPE[0] // pieces))
    schedule[y].parallel(outer)
    return site, SketchedKernel(schedule, (x, y), {})


def spec_with(state: WorkerState, *kernels: tuple[str, SketchedKernel]) -> str:
    return write_kernel_spec(
        [spec_kernel(f"kernel {n}", *one) for n, one in enumerate(kernels)],
        {"target": TARGET.key},
        partial(compile_into, state, TARGET.flags),
    )


def sequences_of(compiler: Compiler, program: str, spec: str) -> list[FoundSequence]:
    return find_sequences(compiler.module(program, spec, "preprocessing").operation)


def in_sequence(compiler: Compiler, program: str, spec: str, cores: int = 2) -> str:
    """The spec with the sequences of a program."""
    found = []
    for one in sequences_of(compiler, program, spec):
        written = io.BytesIO()
        one.module.operation.write_bytecode(written)
        found.append((written.getvalue(), one.together))
    return add_sequences(spec, found, cores)


def calls(compiler: Compiler, program: str, spec: str) -> list[str]:
    """The executables that a program dispatches."""
    module = compiler.module(program, spec, "flow")
    return [
        library.text(ir.ArrayAttr(op.attributes["entry_points"])[0]).partition("::")[0]
        for op in walk(module.operation)
        if op.name == "flow.dispatch"
    ]


def doubling(name: str, source: str) -> str:
    return pointwise(name, source, "%r = arith.addf %p, %p : f32", TEXT)


def chain(length: int) -> str:
    """A program that doubles a matrix and adds what it was before, `length` times: times 3."""
    body, last = [], "%x"
    for n in range(length):
        body += [doubling(f"d{n}", last), added(f"s{n}", f"%d{n}", last)]
        last = f"%s{n}"
    return programs(body, f"%x: {TYPE}", last, TYPE)


@pytest.fixture(scope="module")
def spec(state: WorkerState) -> str:
    return spec_with(state, doubled(4), sums(5))


@pytest.mark.parametrize("driver", ["local-sync", "local-task"])
def test_kernels_that_follow_each_other_are_one_dispatch(
    tmp_path: Path, spec: str, driver: str
) -> None:
    compiler, program = Compiler(tmp_path), chain(3)
    sequenced = in_sequence(compiler, program, spec)
    assert len(calls(compiler, program, spec)) == 6
    assert len(calls(compiler, program, sequenced)) == 1
    # Each kernel counts as often as it runs.
    assert compiler.dispatched(program, sequenced) == {"kernel 0": 3, "kernel 1": 3}
    main = runner(compiler.compiled(program, sequenced), driver)
    for seed in range(20):
        x = random(*SHAPE, seed=seed)
        same(np.asarray(main(x).to_host()), 27 * x)


def runner(binary: bytes, driver: str) -> rt.VmFunction:
    config = rt.Config(driver)
    module = rt.VmModule.copy_buffer(config.vm_instance, binary)
    return rt.SystemContext(vm_modules=[module], config=config).modules.module.main


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 16])
def test_any_number_of_workers_computes_the_same(
    tmp_path: Path, state: WorkerState, spec: str, workers: int
) -> None:
    compiler, program = Compiler(tmp_path), chain(4)
    compiler.compiled(program, in_sequence(compiler, program, spec))
    x = random(*SHAPE)
    same(by_workers(tmp_path, x, workers), 81 * x)


def by_workers(folder: Path, x: np.ndarray, workers: int) -> np.ndarray:
    """What a compiled program computes with so many workers, whatever the machine has."""
    np.save(folder / "x.npy", x)
    subprocess.run(
        [
            str(Path(sys.executable).with_name("iree-run-module")),
            f"--module={folder / 'out'}",
            "--device=local-task",
            f"--task_topology_group_count={workers}",
            "--function=main",
            f"--input=@{folder / 'x.npy'}",
            f"--output=@{folder / 'y.npy'}",
        ],
        check=True,
        timeout=60,
    )
    return np.load(folder / "y.npy")


def test_who_waits_too_long_leaves_the_rest_to_others(tmp_path: Path, state: WorkerState) -> None:
    # One piece that takes many times what a worker waits; then there is more to do.
    spec = spec_with(state, doubled(1, length=16_384), sums(8))
    compiler, program = Compiler(tmp_path), chain(2)
    sequenced = in_sequence(compiler, program, spec)
    assert len(calls(compiler, program, sequenced)) == 1
    compiler.compiled(program, sequenced)
    x = random(*SHAPE)
    for workers in (1, 2, 4):
        same(by_workers(tmp_path, x, workers), 9 * x, 1e-2)


def test_calls_at_the_same_time_do_not_meet(tmp_path: Path, spec: str) -> None:
    compiler, program = Compiler(tmp_path), chain(3)
    main = runner(compiler.compiled(program, in_sequence(compiler, program, spec)), "local-task")

    def some(number: int) -> None:
        for seed in range(50):
            x = random(*SHAPE, seed=100 * number + seed)
            same(np.asarray(main(x).to_host()), 27 * x)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, range(4)))


def test_what_others_use_is_a_result_of_its_own(tmp_path: Path, spec: str) -> None:
    body = [
        doubling("a", "%x"),
        doubling("b", "%a"),
        doubling("c", "%b"),
        added("d", "%c", "%b"),
        f"""
      %e = util.optimization_barrier %b : {TYPE}""",
        added("f", "%d", "%e"),
    ]
    compiler, program = Compiler(tmp_path), programs(body, f"%x: {TYPE}", "%f", TYPE)
    sequenced = in_sequence(compiler, program, spec)
    # a and b; c, d and f.
    assert len(calls(compiler, program, sequenced)) == 2
    x = random(*SHAPE)
    same(compiler.run(program, sequenced, x)[0], 16 * x)


def test_layers_are_not_computed_twice_for_what_ends_the_last(tmp_path: Path, spec: str) -> None:
    """What ends a network (a norm, doubling here) also begins its layers, behind sums that those
    read twice."""
    layers, each = 4, 13
    body, last, inputs = [], "%x", [f"%x: {TYPE}"]
    for n in range(layers):
        body.append(doubling(f"d{n}", last))
        inner = f"%d{n}"
        for k in range(each):
            inputs.append(f"%w{n}_{k}: {TYPE}")
            body.append(added(f"t{n}_{k}", inner, f"%w{n}_{k}"))
            inner = f"%t{n}_{k}"
        body.append(added(f"x{n}", inner, last))
        last = f"%x{n}"
    body.append(doubling("y", last))
    compiler, program = Compiler(tmp_path), programs(body, ", ".join(inputs), "%y", TYPE)
    sequenced = in_sequence(compiler, program, spec)
    first, second, end = calls(compiler, program, sequenced)
    assert first == second != end
    x, *others = (random(*SHAPE, seed=n) for n in range(len(inputs)))
    want = x
    for n in range(layers):
        want = 3 * want + sum(others[n * each : (n + 1) * each])
    same(compiler.run(program, sequenced, x, *others)[0], 2 * want, 1e-4)


def test_a_dispatch_binds_no_more_than_the_runtime_takes(tmp_path: Path, spec: str) -> None:
    count = 60
    body, last = [], "%x0"
    for n in range(1, count):
        body.append(added(f"s{n}", last, f"%x{n}"))
        last = f"%s{n}"
    inputs = ", ".join(f"%x{n}: {TYPE}" for n in range(count))
    compiler, program = Compiler(tmp_path), programs(body, inputs, last, TYPE)
    sequenced = in_sequence(compiler, program, spec)
    assert len(calls(compiler, program, sequenced)) == 3
    values = [random(*SHAPE, seed=n) for n in range(count)]
    same(compiler.run(program, sequenced, *values)[0], sum(values), 1e-4)


def test_what_is_still_read_is_not_written_to(tmp_path: Path, spec: str) -> None:
    compiler, program = Compiler(tmp_path), chain(5)
    module = compiler.module(program, spec, "preprocessing")
    (found,) = find_sequences(module.operation)
    plan = plan_sequence(symbols(found.module)["main"], stage_kernels(module.operation))
    assert len(plan.stages) == 10
    size = 4 * SHAPE[0] * SHAPE[1]
    inside = 2 + len(plan.inputs)
    # What is in each place: the stage that made it; -1 is the program's input.
    there = {BoundPlace(1): -1}
    for number, stage in enumerate(plan.stages):
        *read, own = stage.buffers
        wanted = [number - 1, number - 2 if number > 1 else -1] if number % 2 else [number - 1]
        assert [there[place] for place in read] == wanted
        assert own.binding != inside or own.offset % size == 0
        there[own] = number
    # The last one's is the sequence's result.
    assert there[BoundPlace(inside - 1)] == 9
    # A sum takes the place of what it reads for the last time: the residual, and what is added.
    assert plan.scratch == 2 * size or plan.scratch == size
    assert all(one.buffers[-1] in one.buffers[:-1] for one in plan.stages[3::2])


def test_a_result_takes_the_place_of_what_is_read_at_the_same_places_alone() -> None:
    def kernel_of(write: Callable[..., Any]) -> list[str]:
        x, y = (te.placeholder(SHAPE, "f32", name=name) for name in "xy")
        z = te.compute(SHAPE, lambda i, j: write(x, y, i, j), name="z")
        schedule = te.create_schedule(z)
        outer, _ = schedule[z].split(z.op.axis[0], 7)
        schedule[z].parallel(outer)
        schedule[z].vectorize(schedule[z].split(z.op.axis[1], 16)[1])
        (kernel,) = SketchedKernel(schedule, (x, y, z), {}).lower().program.kernels
        return [buffer.name for buffer in replaceable(kernel)]

    last = SHAPE[0] - 1
    assert kernel_of(lambda x, y, i, j: x[i, j] + y[i, j]) == ["x", "y"]
    assert kernel_of(lambda x, y, i, j: x[i, j] * x[i, j] + y[0, j]) == ["x"]
    # Read at other places, or at others as well.
    assert kernel_of(lambda x, y, i, j: x[last - i, j] + y[i, j]) == ["y"]
    assert kernel_of(lambda x, y, i, j: x[i, j] + x[i, 0] + y[i, j]) == ["y"]
    assert kernel_of(lambda x, y, i, j: te.if_then_else(i > 3, x[i, j], 0.0) + y[0, 0]) == ["x"]


def test_sums_that_are_stored_part_by_part_take_no_place() -> None:
    x, w = te.placeholder((32, 32), "f32", name="x"), te.placeholder((32, 32), "f32", name="w")
    k = te.reduce_axis(32, "k")
    y = te.compute((32, 32), lambda i, j: te.sum(x[i, j] * w[k, j], axis=k), name="y")
    (kernel,) = SketchedKernel(te.create_schedule(y), (x, w, y), {}).lower().program.kernels
    assert replaceable(kernel) == []


def test_truth_values_between_stages_have_a_byte_each(tmp_path: Path, state: WorkerState) -> None:
    bits = f"tensor<{TEXT}xi1>"
    maps = ", ".join(["affine_map<(i, j) -> (i, j)>"] * 2)
    loops = 'iterator_types = ["parallel", "parallel"]'
    asked = f"""
      %m_e = tensor.empty() : {bits}
      %m = linalg.generic {{indexing_maps = [{maps}], {loops}}}
        ins(%x : {TYPE}) outs(%m_e : {bits}) {{
      ^bb0(%p: f32, %o: i1):
        %r = arith.cmpf ogt, %p, %zero : f32
        linalg.yield %r : i1
      }} -> {bits}"""
    chosen = f"""
      %y_e = tensor.empty() : {TYPE}
      %y = linalg.generic {{
          indexing_maps = [{maps}, affine_map<(i, j) -> (i, j)>], {loops}}}
        ins(%m, %x : {bits}, {TYPE}) outs(%y_e : {TYPE}) {{
      ^bb0(%q: i1, %p: f32, %o: f32):
        %r = arith.select %q, %p, %zero : f32
        linalg.yield %r : f32
      }} -> {TYPE}"""
    x = te.placeholder(SHAPE, "f32", name="x")
    m = te.placeholder(SHAPE, "bool", name="m")
    is_more = te.compute(SHAPE, lambda i, j: x[i, j] > 0.0, name="is_more")
    y = te.compute(SHAPE, lambda i, j: te.select(m[i, j], x[i, j], 0.0), name="y")
    kernels = []
    for output, arguments in ((is_more, (x,)), (y, (m, x))):
        schedule = te.create_schedule(output)
        schedule[output].parallel(schedule[output].split(output.op.axis[0], 6)[0])
        kernels.append(SketchedKernel(schedule, (*arguments, output), {}))
    spec = spec_with(
        state,
        (function(f"%x: {TYPE}", "%m", bits, asked), kernels[0]),
        (function(f"%m: {bits}, %x: {TYPE}", "%y", TYPE, chosen), kernels[1]),
        sums(5),
    )
    compiler = Compiler(tmp_path)
    program = programs([asked, chosen, added("z", "%y", "%y")], f"%x: {TYPE}", "%z", TYPE)
    module = compiler.module(program, spec, "preprocessing")
    (found,) = find_sequences(module.operation)
    plan = plan_sequence(symbols(found.module)["main"], stage_kernels(module.operation))
    assert plan.scratch >= SHAPE[0] * SHAPE[1]
    x_ = random(*SHAPE)
    sequenced = in_sequence(compiler, program, spec)
    same(compiler.run(program, sequenced, x_)[0], 2 * np.maximum(x_, 0))


def test_other_programs_keep_their_kernels(tmp_path: Path, spec: str) -> None:
    compiler = Compiler(tmp_path)
    sequenced = in_sequence(compiler, chain(3), spec)
    body = [doubling("a", "%x"), doubling("b", "%a")]
    other = programs(body, f"%x: {TYPE}", "%b", TYPE)
    assert len(calls(compiler, other, sequenced)) == 2
    x = random(*SHAPE)
    same(compiler.run(other, sequenced, x)[0], 4 * x)


def test_kernels_are_told_apart_again(tmp_path: Path, spec: str) -> None:
    compiler, program = Compiler(tmp_path), chain(3)
    sequenced = in_sequence(compiler, program, spec)
    (tmp_path / "one.mlir").write_text(sequenced)
    apart = tmp_path / "apart.mlir"
    result = CliRunner().invoke(
        commands, ["spec", "merge", str(tmp_path / "one.mlir"), "--apart", "-o", str(apart)]
    )
    assert result.exit_code == 0, result.output
    assert check_spec(apart.read_text()).sequences == ()
    assert len(calls(compiler, program, apart.read_text())) == 6
    x = random(*SHAPE)
    same(compiler.run(program, apart.read_text(), x)[0], 27 * x)


def test_specs_with_sequences_are_joined(tmp_path: Path, state: WorkerState, spec: str) -> None:
    compiler, program = Compiler(tmp_path), chain(3)
    sequenced = in_sequence(compiler, program, spec)
    assert check_spec(sequenced).sequences == (("kernel 0", "kernel 1") * 3,)
    x = random(*SHAPE)
    # A kernel that an earlier spec has in its own way is left out, and the sequence with it.
    other = spec_with(state, doubled(2))
    joined = join_specs([other, sequenced])
    assert check_spec(joined.text).sequences == ()
    same(compiler.run(program, joined.text, x)[0], 27 * x)
    # Under other names it stays.
    named = join_specs([spec_with(state, foreign()), sequenced]).text
    assert check_spec(named).sequences == (("kernel 0 (2)", "kernel 1") * 3,)
    assert compiler.dispatched(program, named) == {"kernel 0 (2)": 3, "kernel 1": 3}
    same(compiler.run(program, named, x)[0], 27 * x)


def foreign() -> tuple[str, SketchedKernel]:
    """A site of another shape with a kernel."""
    type_ = "tensor<8x8xf32>"
    site = function(
        f"%x: {type_}", "%y", type_, pointwise("y", "%x", "%r = arith.addf %p, %p : f32", "8x8")
    )
    x = te.placeholder((8, 8), "f32", name="x")
    y = te.compute((8, 8), lambda i, j: x[i, j] + x[i, j], name="y")
    schedule = te.create_schedule(y)
    schedule[y].parallel(y.op.axis[0])
    return site, SketchedKernel(schedule, (x, y), {})


STACKED = f"tensor<{2 * SHAPE[0]}x{SHAPE[1]}xf32>"


def stacked(name: str, *values: str) -> str:
    """Matrices on top of each other."""
    types = ", ".join([TYPE] * len(values))
    whole = f"tensor<{len(values) * SHAPE[0]}x{SHAPE[1]}xf32>"
    return f"""
      %{name} = tensor.concat dim(0) {", ".join(values)} : ({types}) -> {whole}"""


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_parts_of_a_whole_are_written_to_their_places(
    tmp_path: Path, spec: str, workers: int
) -> None:
    # What is a part is read by others, too.
    body = [
        doubling("a", "%x"),
        added("b", "%a", "%x"),
        doubling("c", "%b"),
        added("d", "%c", "%a"),
        stacked("e", "%d", "%b"),
    ]
    compiler, program = Compiler(tmp_path), programs(body, f"%x: {TYPE}", "%e", STACKED)
    sequenced = in_sequence(compiler, program, spec)
    assert len(calls(compiler, program, sequenced)) == 1
    compiler.compiled(program, sequenced)
    x = random(*SHAPE)
    same(by_workers(tmp_path, x, workers), np.concatenate([8 * x, 3 * x]))


@pytest.mark.parametrize(
    ("last", "count"),
    [
        # Rows of both beside each other.
        (f"tensor.concat dim(1) %b, %d : ({TYPE}, {TYPE}) -> tensor<48x64xf32>", 2),
        # One of both twice.
        (f"tensor.concat dim(0) %d, %d : ({TYPE}, {TYPE}) -> {STACKED}", 1),
        # What no kernel makes.
        (f"tensor.concat dim(0) %d, %x : ({TYPE}, {TYPE}) -> {STACKED}", 1),
    ],
)
def test_other_wholes_are_put_together_behind_their_parts(
    tmp_path: Path, spec: str, last: str, count: int
) -> None:
    body = [doubling("a", "%x"), doubling("b", "%a"), doubling("c", "%b"), added("d", "%c", "%c")]
    type_ = last.rpartition("-> ")[2]
    program = programs([*body, f"\n      %e = {last}"], f"%x: {TYPE}", "%e", type_)
    compiler = Compiler(tmp_path)
    sequenced = in_sequence(compiler, program, spec)
    assert sum("sequence" in name for name in calls(compiler, program, sequenced)) == count
    x = random(*SHAPE)
    made = {"%b": 4 * x, "%d": 16 * x, "%x": x}
    parts = [made[name.strip()] for name in last.partition(") ")[2].partition(":")[0].split(",")]
    axis = int("dim(1)" in last)
    same(compiler.run(program, sequenced, x)[0], np.concatenate(parts, axis))


@pytest.mark.parametrize(
    ("times", "dispatched", "looped"), [(4, 4, False), (130, 26, True), (67, 1, True)]
)
def test_what_a_loop_does_each_time_is_one_dispatch(
    tmp_path: Path, spec: str, times: int, dispatched: int, looped: bool
) -> None:
    """As a recurrent layer does: each time around takes the last of what the one before made. A
    number of times that divides all of them is written out."""
    half = f"tensor.extract_slice %s[{SHAPE[0]}, 0] [{TEXT.replace('x', ', ')}] [1, 1]"
    loop = f"""
      %begin = arith.constant 0 : index
      %one = arith.constant 1 : index
      %times = arith.constant {times} : index
      %first = tensor.concat dim(0) %x, %x : ({TYPE}, {TYPE}) -> {STACKED}
      %last = scf.for %i = %begin to %times step %one iter_args(%s = %first) -> ({STACKED}) {{
        %v = {half} : {STACKED} to {TYPE}
        {doubling("a", "%v")}
        {added("b", "%a", "%y")}
        {stacked("c", "%a", "%b")}
        scf.yield %c : {STACKED}
      }}"""
    inputs = f"%x: {TYPE}, %y: {TYPE}"
    compiler, program = Compiler(tmp_path), programs([loop], inputs, "%last", STACKED)
    sequenced = in_sequence(compiler, program, spec)
    assert len(calls(compiler, program, spec)) == 2
    assert len(calls(compiler, program, sequenced)) == dispatched
    flow = compiler.module(program, sequenced, "flow").operation
    assert any(op.name == "scf.for" for op in walk(flow)) == looped
    # Where it goes around often, so that numbers stay small.
    x = random(*SHAPE)
    y = random(*SHAPE, seed=1) if times < 10 else -x
    made, state = x, x
    for _ in range(times):
        made = 2 * state
        state = made + y
    same(compiler.run(program, sequenced, x, y)[0], np.concatenate([made, state]))
    # Where there is no loop, nothing is written out.
    body = [
        f"\n      %v = {half} : {STACKED} to {TYPE}",
        doubling("a", "%v"),
        added("b", "%a", "%y"),
    ]
    inputs = f"%s: {STACKED}, %y: {TYPE}"
    straight = programs([*body, stacked("c", "%a", "%b")], inputs, "%c", STACKED)
    before = np.concatenate([y, x])
    same(compiler.run(straight, sequenced, before, y)[0], np.concatenate([2 * x, 2 * x + y]))


def test_a_loop_of_other_work_stays_a_loop(tmp_path: Path, spec: str) -> None:
    """What it does besides would be written out as often as the sequence."""
    other = pointwise("o", "%u", "%r = math.exp %p : f32", TEXT)
    loop = f"""
      %begin = arith.constant 0 : index
      %one = arith.constant 1 : index
      %times = arith.constant 48 : index
      %last:2 = scf.for %i = %begin to %times step %one
          iter_args(%v = %x, %u = %x) -> ({TYPE}, {TYPE}) {{
        {doubling("a", "%v")}
        {added("b", "%a", "%v")}
        {other}
        scf.yield %b, %o : {TYPE}, {TYPE}
      }}"""
    compiler, program = Compiler(tmp_path), programs([loop], f"%x: {TYPE}", "%last#0", TYPE)
    found = sequences_of(compiler, program, spec)
    assert [one.together for one in found] == [24]


def test_one_worker_does_all_stages(tmp_path: Path, state: WorkerState) -> None:
    """What is for one thread claims no pieces one kernel at a time, and is one dispatch all the
    same."""
    alone = replace(TARGET, cores=1)
    kernels = [
        replace(spec_kernel(f"kernel {n}", *one), target=alone)
        for n, one in enumerate((doubled(4), sums(5)))
    ]
    spec = write_kernel_spec(
        kernels, {"target": alone.key}, partial(compile_into, state, alone.flags)
    )
    compiler, program = Compiler(tmp_path), chain(3)
    apart = compiler.module(program, spec, "flow").operation
    assert not any(op.name == "flow.tensor.splat" for op in walk(apart))
    sequenced = in_sequence(compiler, program, spec, cores=1)
    assert len(calls(compiler, program, sequenced)) == 1
    compiler.compiled(program, sequenced)
    x = random(*SHAPE)
    for workers in (1, 2):
        same(by_workers(tmp_path, x, workers), 27 * x)
