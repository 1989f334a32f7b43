"""Kernels lowered by the passes that they need: the code that IREE's own pipeline makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attention_cases
import pytest
import row_cases
import window_cases
from iree.compiler import ir
from test_dot_tiles import UNIT, product

from tilewright import te
from tilewright.ir import kernel_lowering
from tilewright.ir.generated_code import GeneratedCode, generated
from tilewright.ir.kernel_lowering import lower_to_llvm
from tilewright.ir.session import CompileError, CompilerSession
from tilewright.ir.target_info import executable_target
from tilewright.schedule.build_tasks import SCHEDULE_FLAGS
from tilewright.schedule.codegen import executables_for
from tilewright.schedule.nest import LoopProgram
from tilewright.sketch.generators import sketches
from tilewright.sketch.interface import SiteExpression
from tilewright.target import Target, parse_target

AVX2 = parse_target("cpu:znver3", 2)
PROBE = "func.func @main(%a: tensor<1xi8>) -> tensor<1xi8> { return %a : tensor<1xi8> }"
SITES: dict[str, Callable[[], SiteExpression]] = {
    "product": lambda: product(33, 40, 50, dtype="f32", sums="f32", constant=False),
    "product of bytes": lambda: product(16, 32, 64, dtype="i8", sums="i32", constant=True),
    "product of bf16": lambda: product(16, 32, 64, dtype="bf16", sums="f32", constant=True),
    "convolution": lambda: window_cases.convolution((9, 10), 16, 24, pad=1),
    "depthwise": lambda: window_cases.depthwise((9, 10), 32, stride=2),
    "pooling": lambda: window_cases.pooling((11, 12), 16, 3, 2, pad=1),
    "softmax": lambda: row_cases.softmax(20, 70),
    "softmax of f16": lambda: row_cases.half_softmax(8, 64),
    "layer norm": lambda: row_cases.layer_norm(8, 96),
    "largest place": lambda: row_cases.largest_place(8, 50),
    "attention": lambda: attention_cases.attention(2, 16, 24, 16, 16),
}
# What is computed with floats of two bytes, each by another operation.
NARROW: dict[str, Callable[[Any], Any]] = {
    "sum": lambda one: one + one,
    "size": te.abs,
    "choice": lambda one: te.select(one < te.const(0, one.dtype), one, te.const(1, one.dtype)),
    "integer": lambda one: one.astype("i32"),
}
# Sums of f16 are emitted in f32, of which no other pass makes anything else.
OTHERS = [(n, dtype) for dtype in ("bf16", "f16") for n in NARROW if (n, dtype) != ("sum", "f16")]


class Sessions:
    """Compilers of targets, and IREE's attributes of these."""

    def __init__(self) -> None:
        self._made: dict[Target, tuple[CompilerSession, ir.Attribute]] = {}

    def of(self, target: Target) -> tuple[CompilerSession, ir.Attribute]:
        if target not in self._made:
            session = CompilerSession((*target.flags, *SCHEDULE_FLAGS))
            probe = ir.Module.parse(PROBE, session.context)
            session.run(probe.operation, None, "flow")
            self._made[target] = session, executable_target(probe)
        return self._made[target]


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    return Sessions()


@contextmanager
def ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """By which passes kernels are lowered meanwhile: `all` are IREE's, `needed` the others."""
    found: list[str] = []
    run, run_passes = CompilerSession.run, CompilerSession.run_passes

    def all_(self: CompilerSession, *arguments: Any, **options: Any) -> None:
        found.append("all")
        run(self, *arguments, **options)

    def needed(self: CompilerSession, *arguments: Any) -> None:
        found.append("needed")
        run_passes(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(CompilerSession, "run", all_)
        patched.setattr(CompilerSession, "run_passes", needed)
        yield found


def way(monkeypatch: pytest.MonkeyPatch, session: CompilerSession, module: ir.Module) -> str:
    """By which of them a module is lowered."""
    session.has_passes(kernel_lowering._PIPELINE)
    with ways(monkeypatch) as found:
        lower_to_llvm(session, module)
    (one,) = found
    return one


def objects(session: CompilerSession, module: ir.Module, folder: Path) -> dict[str, str]:
    return {n: str(v) for n, v in GeneratedCode.of(module).objects(session, folder).items()}


def emitted(sessions: Sessions, program: LoopProgram, target: Target) -> ir.Module:
    return executables_for(program, target, sessions.of(target)[1])[0]


def plain(*inputs: te.Tensor, output: te.Tensor) -> LoopProgram:
    """An expression in the order that it is written in."""
    return te.lower(te.create_schedule(output.op), [*inputs, output]).program


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("target", [AVX2, UNIT], ids=["avx2", "amx"])
def test_the_object_files_are_the_same(
    name: str,
    target: Target,
    sessions: Sessions,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Of what each sketch takes for best, byte for byte."""
    session, _ = sessions.of(target)
    site = SITES[name]()
    for sketch in sketches(site, target):
        program = sketch.schedule(sketch.space.default).lower().program
        module = emitted(sessions, program, target)
        text = str(module)
        whole = ir.Module.parse(text, session.context)
        session.run(whole.operation, "executable-sources", "executable-targets", verify=False)
        rounded = any("truncf" in line and "bf16" in line for line in text.splitlines())
        assert way(monkeypatch, session, module) == ("all" if rounded else "needed"), sketch.name
        assert objects(session, module, tmp_path) == objects(session, whole, tmp_path), sketch.name


def test_of_several_programs_too(sessions: Sessions, tmp_path: Path) -> None:
    """Programs that are compiled together are functions of one executable."""
    session, _ = sessions.of(AVX2)
    made = []
    for rows in (8, 16):
        a = te.placeholder((rows, 64), "f32", name="a")
        doubled = te.compute((rows, 64), lambda i, j, a=a: a[i, j] * 2.0, name="doubled")
        made.append(emitted(sessions, plain(a, output=doubled), AVX2))
    code = generated(session, made)
    assert [set(names) for names in code.programs] == [{"kernel_0"}, {"kernel_0"}]
    assert len(code.objects(session, tmp_path)) == 1


@pytest.mark.parametrize(
    ("dtype", "of"),
    [
        ("i32", lambda one: one // 3),
        ("f32", lambda one: one.astype("bf16")),
        *((dtype, NARROW[name]) for name, dtype in OTHERS),
    ],
    ids=[
        "rounded down below 0",
        "a float that is rounded to bf16",
        *(f"{name} of {dtype}" for name, dtype in OTHERS),
    ],
)
def test_what_other_passes_look_at_goes_through_all(
    dtype: str,
    of: Callable[[Any], Any],
    sessions: Sessions,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    session, _ = sessions.of(AVX2)
    a = te.placeholder((16,), dtype, name="a")
    module = emitted(sessions, plain(a, output=te.compute((16,), lambda i: of(a[i]))), AVX2)
    assert way(monkeypatch, session, module) == "all"
    assert objects(session, module, tmp_path)


def test_sums_of_f16_need_no_other_passes(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session, _ = sessions.of(AVX2)
    a = te.placeholder((16,), "f16", name="a")
    program = plain(a, output=te.compute((16,), lambda i: a[i] + a[i]))
    module = emitted(sessions, program, AVX2)
    whole = ir.Module.parse(str(module), session.context)
    session.run(whole.operation, "executable-sources", "executable-targets", verify=False)
    assert way(monkeypatch, session, module) == "needed"
    assert objects(session, module, tmp_path) == objects(session, whole, tmp_path)


def test_a_compiler_without_these_passes_runs_its_own(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session, _ = sessions.of(AVX2)
    a = te.placeholder((16,), "f32", name="a")
    program = plain(a, output=te.compute((16,), lambda i: a[i] + 1.0, name="more"))
    monkeypatch.setattr(kernel_lowering, "_PIPELINE", "hal.executable(no-such-pass)")
    assert not session.has_passes("hal.executable(no-such-pass)")
    module = emitted(sessions, program, AVX2)
    assert way(monkeypatch, session, module) == "all"
    assert objects(session, module, tmp_path)


def test_what_the_compiler_refuses_is_an_error(sessions: Sessions) -> None:
    """Arrays of a function that its stack has no room for."""
    session, _ = sessions.of(AVX2)
    a = te.placeholder((16,), "f32", name="a")
    program = plain(a, output=te.compute((16,), lambda i: a[i] + 1.0, name="more"))
    text = str(emitted(sessions, program, AVX2))
    array = "memref<1048576xf32>"
    large = (
        f"%zero = arith.constant 0 : index\n%large = memref.alloca() : {array}\n"
        f"memref.prefetch %large[%zero], read, locality<3>, data : {array}\nreturn"
    )
    with session.context:
        module = ir.Module.parse(text.replace(" return", large))
    with pytest.raises(CompileError, match="stack"):
        lower_to_llvm(session, module)
