"""Kernels of our own in a tuning run: tried, proven, shipped; left out where they are not wanted.

Verdicts are played, so that what is handed back does not hang on a machine's noise.
"""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hostile_sketches import HostileSketch, compile_hostile, compile_hostile_together

from tilewright.measure.benchmark import Benchmark
from tilewright.measure.comparison import Finalist
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import InputFile
from tilewright.measure.statistics import Interval, Measurement, Verdict
from tilewright.sketch import generators
from tilewright.toolchain import Toolchain
from tilewright.trial import Status
from tilewright.tuning import stages
from tilewright.tuning.events import ignore
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.prepared_variant import NO_KERNEL
from tilewright.tuning.result import TuneResult
from tilewright.tuning.session import TuningSession
from tilewright.tuning.variants import DEFAULT_VARIANT

# IREE makes two dispatches of it: the sums of the rows, and the rest.
PROGRAM = """
#row = affine_map<(i, j) -> (i, j)>
#sum = affine_map<(i, j) -> (i)>
func.func @main(%x: tensor<48x72xf32>) -> tensor<48x72xf32> {
  %zero = arith.constant 0.0 : f32
  %n = arith.constant 72.0 : f32
  %rows = tensor.empty() : tensor<48xf32>
  %all = tensor.empty() : tensor<48x72xf32>
  %none = linalg.fill ins(%zero : f32) outs(%rows : tensor<48xf32>) -> tensor<48xf32>
  %sums = linalg.generic {
      indexing_maps = [#row, #sum], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<48x72xf32>) outs(%none : tensor<48xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %o : f32
    linalg.yield %s : f32
  } -> tensor<48xf32>
  %squares = linalg.generic {
      indexing_maps = [#row, #sum, #sum], iterator_types = ["parallel", "reduction"]}
      ins(%x, %sums : tensor<48x72xf32>, tensor<48xf32>) outs(%none : tensor<48xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %m = arith.divf %s, %n : f32
    %d = arith.subf %a, %m : f32
    %q = arith.mulf %d, %d : f32
    %t = arith.addf %q, %o : f32
    linalg.yield %t : f32
  } -> tensor<48xf32>
  %y = linalg.generic {
      indexing_maps = [#row, #sum, #row], iterator_types = ["parallel", "parallel"]}
      ins(%x, %squares : tensor<48x72xf32>, tensor<48xf32>) outs(%all : tensor<48x72xf32>) {
  ^bb0(%a: f32, %s: f32, %o: f32):
    %r = math.rsqrt %s : f32
    %t = arith.mulf %a, %r : f32
    linalg.yield %t : f32
  } -> tensor<48x72xf32>
  return %y : tensor<48x72xf32>
}
"""


def computed(x: np.ndarray) -> np.ndarray:
    """What the program computes."""
    centred = x - x.mean(axis=1, keepdims=True)
    return x / np.sqrt((centred * centred).sum(axis=1, keepdims=True))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "scaled.mlir"
    path.write_text(PROGRAM)
    return path


def options(folder: Path, **changes: object) -> TuneOptions:
    given: dict[str, object] = {
        "effort": "quick",
        "max_trials": 6,
        "strategy": "random",
        "variants": (DEFAULT_VARIANT,),
        "db": folder / "tilewright.db",
        "output": folder / "out",
        "threads": 1,
        **changes,
    }
    return TuneOptions(**given)  # type: ignore[arg-type]


def trials_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def is_kernel(row: dict[str, str]) -> bool:
    return str(json.loads(row["knobs"])["pipeline"]).startswith("kernel-")


def _played_s(vmfb: object) -> float:
    """Finalists take half of the others' time, programs with one kernel less than with two."""
    path = Path(str(vmfb))
    kernels = path.with_name(f"{path.stem}.preprocessing.mlir")
    if path.stem.startswith("finalist"):
        return 0.5
    return 0.5 + 0.1 * kernels.read_text().count("hal.executable ") if kernels.exists() else 1.0


def _the_winners_are_fastest(self: Benchmark, vmfbs: object, *_: object, **__: object) -> object:
    """Finalists, and programs with kernels, are faster than the others."""
    times = [_played_s(path) for path in vmfbs]  # type: ignore[attr-defined]
    found = []
    for time in times:
        ratio = time / times[0]
        verdict = Verdict.SAME
        if ratio != 1.0:
            verdict = Verdict.FASTER if ratio < 1.0 else Verdict.SLOWER
        interval = Interval(ratio, ratio, ratio, 0.95)
        found.append(Finalist(Measurement((time * 1e-3,) * 8), interval, verdict))
    return found


@pytest.fixture(scope="module")
def played() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Benchmark, "compare_interleaved", _the_winners_are_fastest)
        # A kernel for several dispatches is always as good as its parts.
        patch.setattr("tilewright.tuning.choices._EVEN", 1e9)
        patch.setattr(
            "tilewright.tuning.confirm._promising",
            lambda context, task, selector: [
                t for t in task.trials if t.ok and task.kernel(t.configuration)
            ][:1],
        )
        yield


@pytest.fixture(scope="module")
def shipped(
    program: Path, played: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, TuneResult]:
    folder = tmp_path_factory.mktemp("only")
    given = options(folder, kernels="only", keep_candidates=folder / "kept")
    return folder, TuningSession(program, given, ignore).run()


class TestShipped:
    @pytest.mark.slow
    def test_a_kernel_takes_the_place_of_several_dispatches(
        self, shipped: tuple[Path, TuneResult]
    ) -> None:
        _, result = shipped
        (chain,) = [d for d in result.dispatches if d.dispatches]
        assert len(chain.dispatches) == 2
        assert chain.status == "tuned"
        assert chain.verification == "float64 NumPy"
        assert set(result.changed) == set(chain.dispatches)
        parts = [d for d in result.dispatches if not d.dispatches]
        assert {d.status for d in parts} <= {f"part of {chain.name}", f"skipped: {NO_KERNEL}"}

    def test_what_is_said_of_a_kernel_can_be_read_and_used(
        self, shipped: tuple[Path, TuneResult]
    ) -> None:
        folder, result = shipped
        (kernel,) = [d.kernel for d in result.dispatches if d.kernel]
        assert "for " in kernel.loops
        assert "def schedule(s" in kernel.python
        (told,) = [
            d["kernel"]
            for d in json.loads((folder / "out" / "summary.json").read_text())["dispatches"]
            if d["kernel"]
        ]
        assert told["sketch"] == kernel.sketch
        assert all(is_kernel(row) for row in trials_of(folder))

    def test_a_kept_kernel_has_its_loops_and_schedule_beside_it_and_compiles(
        self, shipped: tuple[Path, TuneResult]
    ) -> None:
        kept = sorted((shipped[0] / "kept").rglob("*.mlir"))
        assert len(kept) == 6
        first = kept[0]
        assert "for " in first.with_suffix(".loops").read_text()
        assert "def schedule(s" in first.with_suffix(".py").read_text()
        command = first.with_suffix(".txt").read_text()
        tools = Toolchain().iree_compile.parent
        environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(first.parent)}
        subprocess.run(command, shell=True, check=True, cwd=first.parent, env=environment)
        assert first.with_suffix(".vmfb").is_file()

    def test_plain_iree_compile_makes_the_same_program(
        self, shipped: tuple[Path, TuneResult], tmp_path: Path
    ) -> None:
        folder, _ = shipped
        out = folder / "out"
        assert (out / "preprocessing_spec.mlir").is_file()
        command = (out / "command.txt").read_text()
        assert "--iree-preprocessing-transform-spec-filename=" in command
        assert "--iree-codegen-tuning-spec-path=" in command
        (out / "program.vmfb").unlink()
        tools = Toolchain().iree_compile.parent
        environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path)}
        subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=environment)
        x = np.random.default_rng(0).standard_normal((48, 72)).astype("f")
        assert np.allclose(run(out / "program.vmfb", x, tmp_path), computed(x), rtol=1e-5)


def run(vmfb: Path, x: np.ndarray, folder: Path) -> np.ndarray:
    from tilewright.argument import ArgumentType
    from tilewright.measure.inputs import write_inputs

    inputs = write_inputs(folder / "inputs", (ArgumentType("f32", x.shape),), (x,))
    assert isinstance(inputs.arguments[0], InputFile)
    with Benchmark(DeviceOptions.cpu(1)) as bench:
        found = bench.run(str(vmfb), inputs, folder / "outputs.npz")
    assert isinstance(found, list)
    return found[0]


@pytest.mark.usefixtures("played")
def test_a_hostile_sketch_is_recorded_and_never_shipped(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generators, "SKETCHES", (HostileSketch,))
    monkeypatch.setattr(stages, "compile_kernel", compile_hostile)
    monkeypatch.setattr(stages, "compile_kernels", compile_hostile_together)
    given = options(tmp_path, kernels="only", only="_more")
    result = TuningSession(program, given, ignore).run()
    assert result.trials_total == 2
    became = {json.loads(row["knobs"])["does"]: row["status"] for row in trials_of(tmp_path)}
    assert became["lie"] == Status.WRONG_RESULT
    assert became["die"] == Status.COMPILE_ERROR
    assert not any(d.kernel for d in result.dispatches)
