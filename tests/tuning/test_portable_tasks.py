"""Compile tasks that travel: what a worker makes of them is what a run's own workers make."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.cluster.portable import portable_tasks
from tilewright.measure.encoding import Files
from tilewright.measure.jobs import Job
from tilewright.target import parse_target
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.prepare import take_apart
from tilewright.tuning.stages import DispatchCompiler
from tilewright.tuning.task import DispatchTask

MATMUL = """
func.func @main(%a: tensor<48x32xf32>, %b: tensor<32x64xf32>) -> tensor<48x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<48x64xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<48x64xf32>) -> tensor<48x64xf32>
  %r = linalg.matmul ins(%a, %b : tensor<48x32xf32>, tensor<32x64xf32>)
      outs(%init : tensor<48x64xf32>) -> tensor<48x64xf32>
  return %r : tensor<48x64xf32>
}
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenProgram]:
    path = tmp_path_factory.mktemp("program") / "matmul.mlir"
    path.write_text(MATMUL)
    with open_program(path, parse_target("cpu", 1)) as made:
        yield made


@pytest.fixture(scope="module")
def task(opened: OpenProgram) -> DispatchTask:
    (found,) = take_apart(opened).tasks
    return found


@pytest.mark.slow
def test_candidates_are_the_same_programs_elsewhere(
    opened: OpenProgram, task: DispatchTask, tmp_path: Path
) -> None:
    drawn = task.restricted.sample(np.random.default_rng(0), 400)
    plain = [one for one in drawn if task.kernel(one) is None][:2]
    kernels = [one for one in drawn if task.kernel(one) is not None][:2]
    assert len(plain) == len(kernels) == 2
    task.folder.mkdir(parents=True, exist_ok=True)
    jobs = DispatchCompiler(task, opened.compilers).jobs([*plain, *kernels])
    known = {one.task: one for one in portable_tasks().values()}
    files, theirs = Files(tmp_path / "files"), Files(tmp_path / "files")
    for number, job in enumerate(jobs):
        portable = known[job.task]
        packed = portable.pack(job.request, files)
        assert packed is not None
        sent = json.loads(json.dumps(packed))
        place = tmp_path / f"theirs{number}"
        place.mkdir()
        request = portable.unpack(sent, theirs, place)
        results = opened.compilers.run([job, Job(portable.done_by, request, 60.0)])
        here, there = (result.value for result in results)
        made = Path(job.request.vmfb).read_bytes()
        reply: Any = json.loads(json.dumps(portable.pack_reply(request, there, theirs)))
        elsewhere = replace(job.request, vmfb=tmp_path / f"back{number}.vmfb")
        back = portable.unpack_reply(elsewhere, reply, files)
        digests = [getattr(one, "digest", one) for one in (here, back)]
        assert digests[0] == digests[1]
        assert elsewhere.vmfb.read_bytes() == made


def test_what_is_kept_beside_the_results_is_made_here(
    opened: OpenProgram, task: DispatchTask, tmp_path: Path
) -> None:
    drawn = task.restricted.sample(np.random.default_rng(0), 1)
    task.folder.mkdir(parents=True, exist_ok=True)
    (job,) = DispatchCompiler(task, opened.compilers, tmp_path / "kept").jobs(drawn)
    known = {one.task: one for one in portable_tasks().values()}
    assert known[job.task].pack(job.request, Files(tmp_path / "files")) is None


def test_a_file_that_a_flag_names_travels(
    opened: OpenProgram, task: DispatchTask, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.mlir"
    spec.write_text("module {}")
    request = replace(task.request(tmp_path / "a.vmfb"), flags=("--x", f"--spec={spec}"))
    portable = portable_tasks()["candidate"]
    packed = portable.pack(request, Files(tmp_path / "files"))
    assert packed is not None
    text = json.dumps(packed)
    assert str(spec) not in text
    found = portable.unpack(json.loads(text), Files(tmp_path / "files"), tmp_path)
    assert found.flags[0] == "--x"
    name, _, path = found.flags[1].partition("=")
    assert name == "--spec"
    assert Path(path).read_text() == "module {}"
