"""The reports for IREE's tracker: what each says happens with the IREE that is installed.

A test that fails here is good news: the report is to be closed, with what was built around it.
"""

from __future__ import annotations

import os
import platform
import re
import runpy
import sys
from pathlib import Path

import iree.runtime as rt
import numpy as np
import pytest

from tilewright.ir.session import CONFIGURED_PHASE, CompileError, CompilerSession
from tilewright.toolchain import WITHOUT_THREADS

REPORTS = Path(__file__).parents[2] / "docs" / "upstream"
CPU = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")


def text(name: str) -> str:
    return (REPORTS / name).read_text()


def test_every_case_has_a_report() -> None:
    page = text("README.md")
    cases = [path.name for path in REPORTS.iterdir() if path.suffix in (".mlir", ".py")]
    assert len(cases) == 7
    assert all(name in page for name in cases)


def run(source: str, *arrays: np.ndarray) -> np.ndarray:
    config = rt.Config("local-sync")
    vmfb = CompilerSession(CPU).compile(source)
    module = rt.VmModule.copy_buffer(config.vm_instance, vmfb)
    main = rt.SystemContext(vm_modules=[module], config=config).modules.module["main"]
    return np.asarray(main(*arrays).to_host())


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="a case of x86-64")
def test_tiles_of_an_mmt4d_are_read_as_if_cut() -> None:
    a, b = np.arange(16, dtype=np.float32).reshape(1, 2, 8, 1), np.ones((1, 2, 16, 1), np.float32)
    found = run(text("mmt4d_8x16.mlir"), a, b)
    rows = np.arange(8)
    np.testing.assert_array_equal(found[0, 0, :, 0], 2 + 2 * rows)  # right: 8 + 2 * rows


@pytest.mark.parametrize("place", ["(c, i * 2, j * 2)>", "(c, i + 1, j + 1)>"])
def test_what_reads_other_pixels_beside_a_convolution_does_not_compile(place: str) -> None:
    source = text("strided_sum.mlir").replace("(c, i * 2, j * 2)>", place)
    with pytest.raises(CompileError, match="restricted to workgroup distributed contexts"):
        CompilerSession(CPU).compile(source)


def test_a_shared_zero_fill_gives_wrong_numbers() -> None:
    random = np.random.default_rng(0)
    shapes = ((4, 56, 56, 16), (16, 4, 16, 16), (16, 4, 16, 16))
    x, u, v = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    first, second = (np.einsum("chwq,ocqp->ohwp", x, w, optimize=True) for w in (u, v))
    found = run(text("shared_zero_fill.mlir"), x, u, v)
    assert np.abs(found - (first + second)).max() > 1.0
    np.testing.assert_allclose(found, first + 2 * second, rtol=1e-3, atol=1e-3)


def test_softmax_is_configured_in_two_ways() -> None:
    session, source = CompilerSession(CPU), text("softmax_configuration.mlir")
    found = {session.compile(source, compile_to=CONFIGURED_PHASE) for _ in range(20)}
    assert len(found) > 1


def test_a_convolution_of_a_small_image_is_refused() -> None:
    source = text("onnx_conv_2x2.mlir")
    session = CompilerSession([*CPU, "--iree-input-type=onnx"])
    with pytest.raises(CompileError, match="inferred input/output operand #1"):
        session.compile(source)
    larger = source.replace("2,2],f32", "4,4],f32").replace("[1,1,1,1],f32", "[1,1,2,2],f32")
    assert session.compile(larger)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a kind of process that Linux has")
def test_the_chain_that_waits_is_timed_both_ways(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setattr(sys, "argv", ["wait_preempts_worker.py", "1"])
    assert runpy.run_path(str(REPORTS / "wait_preempts_worker.py"))["main"]() == 0
    plain, batch = re.fullmatch(
        r"(.+) ms, as a batch process (.+) ms\n", capsys.readouterr().out
    ).groups()
    assert min(float(plain), float(batch)) > 0


def test_the_program_of_the_deadlock_compiles_without_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    script = runpy.run_path(str(REPORTS / "tuning_spec_deadlock.py"))
    assert script["attempt"](tmp_path, WITHOUT_THREADS)
