"""Kernels in sequence in a tuning run: built, checked, proven, handed back, or left alone.

Verdicts are played, so that what is handed back does not hang on a machine's noise.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.measure.benchmark import Benchmark
from tilewright.measure.comparison import Finalist
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import write_inputs
from tilewright.measure.statistics import Interval, Measurement, Verdict
from tilewright.spec.read import check_spec
from tilewright.toolchain import Toolchain
from tilewright.tuning import more_rivals, sequencing, starts
from tilewright.tuning.choices import Choices, Found
from tilewright.tuning.events import ignore
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.result import TuneResult
from tilewright.tuning.session import TuningSession
from tilewright.tuning.variants import DEFAULT_VARIANT

PRODUCT = """
  %{name}_f = linalg.fill ins(%zero : f32) outs(%none : tensor<48x48xf32>) -> tensor<48x48xf32>
  %{name}_p = linalg.matmul ins({left}, %w : tensor<48x48xf32>, tensor<48x48xf32>)
    outs(%{name}_f : tensor<48x48xf32>) -> tensor<48x48xf32>
  %{name} = linalg.generic {{indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}}
    ins(%{name}_p : tensor<48x48xf32>) outs(%none : tensor<48x48xf32>) {{
  ^bb0(%p: f32, %o: f32):
    %r = arith.maximumf %p, %zero : f32
    linalg.yield %r : f32
  }} -> tensor<48x48xf32>"""
PROGRAM = f"""
#id = affine_map<(i, j) -> (i, j)>
func.func @main(%x: tensor<48x48xf32>, %w: tensor<48x48xf32>) -> tensor<48x48xf32> {{
  %zero = arith.constant 0.0 : f32
  %none = tensor.empty() : tensor<48x48xf32>{PRODUCT.format(name="a", left="%x")}
  {PRODUCT.format(name="b", left="%a")}
  return %b : tensor<48x48xf32>
}}
"""


def computed(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.maximum(np.maximum(x @ w, 0) @ w, 0)


def sequences_are_fastest(self: Benchmark, vmfbs: object, *_: object, **__: object) -> object:
    """Programs with kernels are faster than those without, in sequence and with more most."""
    found = []
    times = []
    for path in map(Path, vmfbs):  # type: ignore[call-overload]
        kernels = path.with_name(f"{path.stem}.preprocessing.mlir").exists()
        ahead = kernels or path.stem.startswith("finalist")
        time = 0.25 if path.stem.endswith("_in_sequence") else 0.5 if ahead else 1.0
        times.append(0.9 * time if "_more_" in path.stem else time)
    for time in times:
        ratio = time / times[0]
        verdict = Verdict.SAME
        if ratio != 1.0:
            verdict = Verdict.FASTER if ratio < 1.0 else Verdict.SLOWER
        interval = Interval(ratio, ratio, ratio, 0.95)
        found.append(Finalist(Measurement((time * 1e-3,) * 8), interval, verdict))
    return found


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Benchmark, "compare_interleaved", sequences_are_fastest)
    monkeypatch.setattr(
        "tilewright.tuning.confirm._promising",
        lambda context, task, selector: [
            t for t in task.trials if t.ok and task.kernel(t.configuration)
        ][:1],
    )


def tuned(folder: Path, threads: int, text: str = PROGRAM, trials: int = 4) -> TuneResult:
    program = folder / "products.mlir"
    program.write_text(text)
    options = TuneOptions(
        effort="quick",
        max_trials=trials,
        strategy="random",
        variants=(DEFAULT_VARIANT,),
        db=folder / "tilewright.db",
        output=folder / "out",
        threads=threads,
        kernels="only",
    )
    return TuningSession(program, options, ignore).run()


def run(vmfb: Path, folder: Path, *values: np.ndarray) -> np.ndarray:
    from tilewright.argument import ArgumentType

    types = tuple(ArgumentType("f32", value.shape) for value in values)
    inputs = write_inputs(folder / "inputs", types, values)
    with Benchmark(DeviceOptions.cpu(2)) as bench:
        found = bench.run(str(vmfb), inputs, folder / "outputs.npz")
    assert isinstance(found, list)
    return found[0]


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_in_sequence_are_handed_back_and_proven(tmp_path: Path, threads: int) -> None:
    result = tuned(tmp_path, threads)
    out = tmp_path / "out"
    (sequence,) = check_spec((out / "preprocessing_spec.mlir").read_text()).sequences
    # One site that occurs twice.
    assert len(sequence) == 2
    assert len(set(sequence)) == 1
    assert [d.status for d in result.dispatches if d.entry] == ["tuned"]
    assert result.program.verified
    (out / "program.vmfb").unlink()
    command = (out / "command.txt").read_text().splitlines()[0]
    tools = Toolchain().iree_compile.parent
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=environment)
    x, w = np.random.default_rng(0).standard_normal((2, 48, 48)).astype("f")
    np.testing.assert_allclose(
        run(out / "program.vmfb", tmp_path, x, w), computed(x, w), rtol=1e-4, atol=1e-4
    )


@pytest.mark.usefixtures("played")
def test_what_fails_leaves_the_program_with_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crashes(*_: object) -> int:
        raise OSError("no space left on device")

    monkeypatch.setattr(sequencing, "write_sequences", crashes)
    result = tuned(tmp_path, 2)
    assert check_spec((tmp_path / "out" / "preprocessing_spec.mlir").read_text()).sequences == ()
    assert any("not put in sequence" in note for note in result.notes)
    assert [d.status for d in result.dispatches if d.entry] == ["tuned"]


def test_kernels_stand_apart_where_that_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: None
) -> None:
    """As far as there is time a program in sequence is compared with one that has none."""

    def apart_is_fastest(self: Benchmark, vmfbs: Any, *_: object, **__: object) -> object:
        names = [str(path).replace("_in_sequence_apart", "_more_in_sequence") for path in vmfbs]
        return sequences_are_fastest(self, names)

    monkeypatch.setattr(Benchmark, "compare_interleaved", apart_is_fastest)
    result = tuned(tmp_path, 2)
    assert check_spec((tmp_path / "out" / "preprocessing_spec.mlir").read_text()).sequences == ()
    assert [d.status for d in result.dispatches if d.entry] == ["tuned"]
    assert result.program.verified


@pytest.mark.usefixtures("played")
def test_kernels_almost_as_fast_alone_are_tried_between_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only one of two sites has a kernel that is taken for faster alone.
    wider = PROGRAM.replace(
        "  return %b : tensor<48x48xf32>",
        """
  %zeros = tensor.empty() : tensor<48xf32>
  %c = linalg.fill ins(%zero : f32) outs(%zeros : tensor<48xf32>) -> tensor<48xf32>
  %sums = linalg.generic {
      indexing_maps = [#id, affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]}
    ins(%b : tensor<48x48xf32>) outs(%c : tensor<48xf32>) {
  ^bb0(%p: f32, %o: f32):
    %r = arith.addf %p, %o : f32
    linalg.yield %r : f32
  } -> tensor<48xf32>
  return %sums : tensor<48xf32>""",
    ).replace("-> tensor<48x48xf32> {", "-> tensor<48xf32> {")
    monkeypatch.setattr(more_rivals, "_NEAR", 1e9)
    real = starts.settle

    def products_alone(prepared: PreparedVariant, found: Found) -> Choices:
        named = {task.identity: task.name for task in prepared.tasks}
        chosen = real(prepared, found)
        return {key: one for key, one in chosen.items() if "matmul" in named[key]}

    monkeypatch.setattr(starts, "settle", products_alone)
    monkeypatch.setattr("tilewright.tuning.confirm._promising", lambda *_: [])
    monkeypatch.setattr("tilewright.tuning.starts._WORTH", 1e9)
    tuned(tmp_path, 2, wider, trials=12)
    (sequence,) = check_spec((tmp_path / "out" / "preprocessing_spec.mlir").read_text()).sequences
    assert [name.split("_")[0] for name in sequence] == ["contraction"] * 2 + ["reduction"]


@dataclass
class PlayedTask:
    """A task of a program as far as it matters which kernels are tried more; all are kernels."""

    identity: str
    kernel_s: float
    parts: tuple[str, ...] = ()
    ok: bool = True
    default_s: float = 1.0
    trials: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        slow = SimpleNamespace(ok=True, time_s=9.0, configuration="slow")
        best = SimpleNamespace(ok=self.ok, time_s=self.kernel_s, configuration=self.identity)
        self.trials = [slow, best]

    @property
    def is_chain(self) -> bool:
        return bool(self.parts)

    def kernel(self, configuration: object) -> object:
        return configuration


@dataclass
class PlayedCompany:
    """A program whose choices are `choices`."""

    prepared: Any
    choices: dict[str, str]
    covered: dict[str, str]
    dropped: set[str]
    build: Any


MORE = {
    "near": ([PlayedTask("a", 1.2)], {}, {"a"}),
    "too slow": ([PlayedTask("a", 1.9)], {}, set()),
    "wrong results": ([PlayedTask("a", 0.5, ok=False)], {}, set()),
    "chosen already": ([PlayedTask("a", 0.5)], {"a": "now"}, set()),
    "several dispatches first": (
        [PlayedTask("a", 0.9), PlayedTask("b", 0.9), PlayedTask("ab", 1.2, ("a", "b"))],
        {},
        {"ab"},
    ),
    "one of several has a kernel": (
        [PlayedTask("a", 0.9), PlayedTask("b", 1.1), PlayedTask("ab", 0.5, ("a", "b"))],
        {"a": "now"},
        {"b"},
    ),
    "of two that overlap the first": (
        [
            PlayedTask("b", 9.0),
            PlayedTask("ab", 1.0, ("a", "b")),
            PlayedTask("bc", 1.0, ("b", "c")),
        ],
        {},
        {"ab"},
    ),
}


@pytest.mark.parametrize("name", MORE)
def test_which_kernels_are_tried_between_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, choices, expected = MORE[name]
    by = {task.identity: task for task in tasks}
    prepared = SimpleNamespace(
        tasks=tasks, parts_of=lambda task: [by[part] for part in task.parts if part in by]
    )
    build = SimpleNamespace(name="best", preprocessing=Path("spec.mlir"))
    company: Any = PlayedCompany(prepared, dict(choices), {}, {"gone"}, build)
    asked: list[dict[str, str]] = []

    def built(programs: object, prepared: object, several: Any, stem: str) -> list[Any]:
        asked.extend(several)
        assert stem == "best_more"
        return [PlayedCompany(prepared, several[0], {}, set(), build)]

    monkeypatch.setattr(more_rivals, "build_companies", built)
    more = more_rivals.with_more_kernels(SimpleNamespace(), company)  # type: ignore[arg-type]
    if not expected:
        assert more is None
        assert not asked
        return
    assert asked == [choices | {key: key for key in expected}]
    assert more is not None
    assert more.dropped == {"gone"}


def test_without_kernels_there_are_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = SimpleNamespace(tasks=[PlayedTask("a", 0.9)], parts_of=lambda task: [])
    build = SimpleNamespace(name="best", preprocessing=None)
    company: Any = PlayedCompany(prepared, {}, {}, set(), build)
    monkeypatch.setattr(more_rivals, "build_companies", lambda *_: pytest.fail("built"))
    assert more_rivals.with_more_kernels(SimpleNamespace(), company) is None  # type: ignore[arg-type]
