"""The kernels compute what they are said to, and the peak is kept, renewed and never lowered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tilewright.argument import dtype_of
from tilewright.errors import TilewrightError
from tilewright.ir.peak_instructions import (
    INSTRUCTIONS,
    ArithmeticKernel,
    Form,
    Instruction,
    MemoryKernel,
    accumulators_for,
    usable_forms,
)
from tilewright.ir.peak_kernels import FUNCTION, build
from tilewright.ir.session import CompilerSession
from tilewright.measure import peak as peaks
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.jobs import WorkerState
from tilewright.measure.machine import describe
from tilewright.measure.peak import (
    Peak,
    cache_path,
    cached_peak,
    machine_peak,
    measure_peak,
)
from tilewright.measure.processor import processor
from tilewright.measure.runtime import Device
from tilewright.target import parse_target

FLAGS = (*parse_target("cpu", 1).flags, "--iree-input-demote-f64-to-f32=false")
WORKGROUPS, STEPS, CHAINS = 2, 3, 4


@pytest.fixture(scope="module")
def compiler() -> CompilerSession:
    return CompilerSession(FLAGS)


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(DeviceOptions("local-sync"))


@pytest.fixture(scope="module")
def features() -> tuple[frozenset[str], int]:
    _, found, vector_bytes = processor(WorkerState(), FLAGS)
    return frozenset(f[1:] for f in found.split(",") if f.startswith("+")), vector_bytes


def run(compiler: CompilerSession, device: Device, kernel, arrays):
    """The result of a kernel's program, and its arguments after it has run."""
    vmfb = compiler.compile(build(compiler.context, kernel).operation)
    program = device.load(vmfb)
    arguments = [device.upload(array) for array in arrays]
    (result,) = program.outputs(program.bind(FUNCTION, arguments)())
    return result, [device.download(argument) for argument in arguments]


def expected_step(kernel: ArithmeticKernel, c, a, b):
    """One instruction in NumPy."""
    kind = kernel.instruction.kind
    if kind in ("fma", "multiply_add"):
        return c * a + b
    if kind == "add":
        return (c + a) ^ b
    narrow = kernel.instruction.element_type
    bits = dtype_of(narrow)
    left, right = (x.view(bits).astype(np.float64 if narrow == "bf16" else np.int64)
                   for x in (a if kind == "dot" else c, b))  # fmt: skip
    if narrow == "i8" and "x86" in kernel.form.intrinsic:
        left = a.view(np.uint8).astype(np.int64)
    terms = (left * right).reshape(len(c), -1).sum(axis=1)
    return (c + terms).astype(c.dtype)


@pytest.mark.parametrize("element_type", sorted({i.element_type for i in INSTRUCTIONS}))
def test_every_arithmetic_kernel_computes_its_sums(compiler, device, features, element_type):
    kernels = [
        ArithmeticKernel(instruction, form, CHAINS, STEPS, WORKGROUPS)
        for instruction in INSTRUCTIONS
        if instruction.element_type == element_type
        for form in usable_forms(instruction, *features)
    ]
    assert kernels or element_type in ("f16", "bf16"), "every processor multiplies these"
    rng = np.random.default_rng(1)
    for kernel in kernels:
        dtype = dtype_of(kernel.instruction.accumulator)
        shape = (CHAINS + 2, kernel.lanes)
        if dtype.kind == "f" and kernel.instruction.element_type == "bf16":
            # Pairs of bf16 in the bits of an f32.
            values = rng.uniform(0.5, 0.9, size=(CHAINS + 2, 2 * kernel.lanes))
            data = values.astype(ml_dtypes.bfloat16).view(np.float32)
        elif dtype.kind == "f":
            data = rng.uniform(0.5, 0.9, size=shape).astype(dtype)
        else:
            data = rng.integers(1, 8, size=shape).astype(dtype)
        assert kernel.arguments[0].shape == (data.size,)
        chains, a, b = list(data[:CHAINS]), data[CHAINS], data[CHAINS + 1]
        for _ in range(STEPS):
            with np.errstate(over="ignore"):
                chains = [expected_step(kernel, c, a, b).astype(dtype) for c in chains]
        total = sum(chains[1:], chains[0]).astype(dtype)
        result, _ = run(compiler, device, kernel, [data.reshape(-1)])
        tolerance = {"f16": 2e-2, "f32": 1e-2 if "bf" in kernel.instruction.element_type else 1e-5}
        np.testing.assert_allclose(
            result.reshape(WORKGROUPS, -1),
            np.stack([total] * WORKGROUPS),
            rtol=tolerance.get(kernel.instruction.accumulator, 1e-9),
            err_msg=f"{kernel.instruction.element_type} {kernel.name}",
        )


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["read", "copy", "triad"])
def test_memory_kernels_touch_every_element(compiler, device, features, kind, streaming):
    elements = WORKGROUPS * 4 * 64
    kernel = MemoryKernel(kind, elements, WORKGROUPS, features[1], streaming)
    rng = np.random.default_rng(2)
    arrays = [rng.integers(0, 50, size=elements).astype(np.float32) for _ in kernel.arguments]
    result, after = run(compiler, device, kernel, arrays)
    if kind == "read":
        assert result.sum() == arrays[0].sum()
    elif kind == "copy":
        assert np.array_equal(after[1], arrays[0])
    else:
        assert np.array_equal(after[2], arrays[0] + np.float32(0.5) * arrays[1])
    assert kernel.work == 4 * elements * len(arrays)


def test_operations_are_counted_by_lane_and_term():
    dot = next(i for i in INSTRUCTIONS if i.element_type == "i8" and i.kind == "dot")
    kernel = ArithmeticKernel(dot, Form(64, intrinsic="x"), 10, 100, 7)
    # 64 products and 64 additions in each instruction.
    assert kernel.work == 128 * 10 * 100 * 7


def test_forms_follow_the_processors_features():
    (dots,) = [i for i in INSTRUCTIONS if i.name == "dot product of fours"]
    assert usable_forms(dots, frozenset({"avx2"}), 32) == ()
    assert [f.bytes for f in usable_forms(dots, frozenset({"avxvnni", "avx2"}), 32)] == [32]
    both = usable_forms(dots, frozenset({"avx512vnni", "avxvnni"}), 64)
    assert sorted(f.bytes for f in both) == [32, 64]
    half = next(i for i in INSTRUCTIONS if i.element_type == "f16")
    assert usable_forms(half, frozenset({"avx512f"}), 64) == ()
    assert usable_forms(half, frozenset({"fullfp16"}), 16) == (Form(16),)
    assert accumulators_for(16) < 14
    assert accumulators_for(32) <= 29


# -- the cache -------------------------------------------------------------------------------------


def a_peak(gflops: float, threads: int = 1) -> Peak:
    return Peak(threads, "some", {"f32": gflops}, {"copy": 9.0}, {"f32": "fma"}, "m", 1.0)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Rates that the next measurements give; those given are taken off."""
    rates: list[float] = []
    monkeypatch.setattr(peaks, "measure_peak", lambda threads: a_peak(rates.pop(0), threads))
    return rates


def test_a_peak_is_measured_once_for_each_number_of_threads(tmp_path, measured):
    file = tmp_path / "deep" / "peak.json"
    measured += [100.0, 200.0]
    assert cached_peak(1, cache=file) is None
    assert machine_peak(1, cache=file).gflops == 100.0
    assert machine_peak(1, cache=file).gflops == 100.0
    assert machine_peak(2, cache=file).gflops == 200.0
    assert cached_peak(1, cache=file) == a_peak(100.0)
    assert not measured


def test_a_faster_kernel_has_it_measured_again_and_it_never_falls(tmp_path, measured):
    file = tmp_path / "peak.json"
    measured += [100.0, 90.0, 130.0]
    machine_peak(1, cache=file)
    assert machine_peak(1, at_least={"f32": 99.0}, cache=file).gflops == 100.0
    assert machine_peak(1, at_least={"f32": 101.0}, cache=file).gflops == 100.0
    assert machine_peak(1, at_least={"f32": 120.0}, cache=file).gflops == 130.0
    assert cached_peak(1, cache=file) == a_peak(130.0)
    # Of a type that nothing is known about, nothing is learnt by measuring again.
    assert machine_peak(1, at_least={"f8": 1e9}, cache=file).gflops == 130.0


def test_one_of_a_busy_machine_is_measured_again_when_it_is_quiet(tmp_path, monkeypatch):
    file = tmp_path / "peak.json"
    made = iter([replace(a_peak(60.0), busy=True), a_peak(100.0)])
    monkeypatch.setattr(peaks, "measure_peak", lambda threads: next(made))
    for load, gflops in ((99.0, 60.0), (99.0, 60.0), (0.0, 100.0), (99.0, 100.0)):
        now = replace(describe(), load=load)
        monkeypatch.setattr(peaks, "describe", lambda now=now: now)
        assert machine_peak(1, cache=file).gflops == gflops
        assert cached_peak(1, cache=file).gflops == gflops
    monkeypatch.undo()


def test_refreshing_forgets_the_old_one(tmp_path, measured):
    file = tmp_path / "peak.json"
    measured += [100.0, 90.0]
    machine_peak(1, cache=file)
    assert machine_peak(1, refresh=True, cache=file).gflops == 90.0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', '{"a": {"b": 2}}', "\x00\xff"])
def test_a_damaged_cache_is_measured_anew(tmp_path, measured, content):
    file = tmp_path / "peak.json"
    file.write_text(content)
    measured.append(50.0)
    assert machine_peak(1, cache=file).gflops == 50.0
    assert cached_peak(1, cache=file) is not None


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, measured):
    blocked = tmp_path / "file"
    blocked.write_text("")
    measured += [50.0, 60.0]
    assert machine_peak(1, cache=blocked / "peak.json").gflops == 50.0
    assert machine_peak(1, cache=blocked / "peak.json").gflops == 60.0


def test_other_machines_in_one_cache_do_not_mix(tmp_path, measured, monkeypatch):
    file = tmp_path / "peak.json"
    measured += [100.0, 300.0]
    machine_peak(1, cache=file)
    other = replace(describe(), features=("another",))
    monkeypatch.setattr(peaks, "describe", lambda: other)
    assert machine_peak(1, cache=file).gflops == 300.0
    assert len(json.loads(file.read_text())) == 2


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    assert cache_path() == tmp_path / "peak.json"
    monkeypatch.delenv("TILEWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_path() == tmp_path / "xdg" / "tilewright" / "peak.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_path().is_relative_to(Path.home())


# -- from rates to a peak --------------------------------------------------------------------------


def of(element_type: str, name: str) -> ArithmeticKernel:
    return ArithmeticKernel(Instruction(name, element_type, "i32", 2, "add"), Form(64), 1, 1, 1)


def stream(kind: str, streaming: bool = False) -> MemoryKernel:
    return MemoryKernel(kind, 1024, 1, 64, streaming)


def test_a_narrow_type_has_at_least_the_peak_of_what_it_is_computed_in():
    rates = {
        of("f32", "fma"): 100.0,
        of("bf16", "dot"): 80.0,
        of("i32", "add"): 50.0,
        of("i16", "pairs"): 40.0,
        of("i8", "dot"): 400.0,
        stream("copy"): 8.0,
        stream("copy", True): 12.0,
    }
    found = peaks._peak(describe(), 1, rates)
    assert found.compute == {
        "f32": 100.0, "bf16": 100.0, "f16": 100.0, "i32": 50.0, "i16": 50.0, "i8": 400.0,
    }  # fmt: skip
    assert found.instructions["bf16"] == "f32 fma, 512-bit vectors"
    assert set(found.instructions) == set(found.compute)
    assert (found.memory, found.gbytes_per_s) == ({"copy": 12.0}, 12.0)
    assert found.share(50.0, "bf16") == 0.5
    assert found.share(50.0, "f8E4M3FN") is None
    assert Peak(**json.loads(json.dumps(found.to_json()))) == found


def test_without_a_kernel_that_runs_there_is_no_peak():
    with pytest.raises(TilewrightError, match="no kernel of it runs"):
        peaks._peak(describe(), 1, {of("f32", "fma"): 1.0})
    with pytest.raises(TilewrightError, match="no kernel of it runs"):
        peaks._peak(describe(), 1, {stream("copy"): 1.0})


@pytest.mark.slow
def test_a_measured_peak_has_all_types_and_their_order():
    found = measure_peak(1)
    assert set(found.compute) >= {"f32", "f64", "f16", "bf16", "i8", "i16", "i32"}
    assert all(rate > 0 for rate in (*found.compute.values(), *found.memory.values()))
    assert set(found.memory) == {"read", "copy", "triad"}
    # Twice the bits, half the lanes: by design of every vector unit.
    assert 1.5 < found.compute["f32"] / found.compute["f64"] < 2.5
    assert found.compute["i8"] >= found.compute["i16"] >= found.compute["i32"]
