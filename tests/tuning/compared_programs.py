"""A program of one elementwise op, and others that are compared with it as tuned ones are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.argument import ArgumentType
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import CompileRequest, compile_source
from tilewright.measure.device_options import Parameters
from tilewright.measure.inputs import write_inputs
from tilewright.measure.pool import WorkerPool
from tilewright.target import parse_target
from tilewright.toolchain import Toolchain
from tilewright.tuning.builds import Build
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.programs import Programs
from tilewright.tuning.variants import DEFAULT_VARIANT

COUNT = 512
TYPE = f"tensor<{COUNT}xf32>"
FLAGS = parse_target("cpu").flags


def source(body: str) -> str:
    same = "affine_map<(i) -> (i)>"
    return f"""func.func @main(%x: {TYPE}) -> {TYPE} {{
  %e = tensor.empty() : {TYPE}
  %y = linalg.generic {{indexing_maps = [{same}, {same}], iterator_types = ["parallel"]}}
      ins(%x : {TYPE}) outs(%e : {TYPE}) {{
  ^bb0(%a: f32, %o: f32):
    {body}
    linalg.yield %r : f32
  }} -> {TYPE}
  return %y : {TYPE}
}}"""


class Case:
    """A program with others that are compared with it."""

    def __init__(
        self,
        folder: Path,
        compilers: WorkerPool,
        device: Benchmark,
        body: str,
        data: npt.NDArray[np.float32],
    ) -> None:
        self.folder, self.compilers, self.notes = folder, compilers, list[str]()
        path = folder / "program.mlir"
        path.write_text(source(body))
        opened: Any = SimpleNamespace(
            program=SimpleNamespace(path=path),
            toolchain=Toolchain(),
            work=folder,
            benchmark=device,
            compilers=compilers,
            target=SimpleNamespace(cores=2, is_gpu=False),
            options=TuneOptions(),
            deadlines=Deadlines(None, 0.0),
            flags=lambda *_: FLAGS,
            left_s=None,
            note=lambda text, **_: self.notes.append(text),
        )
        self.context = opened
        inputs = write_inputs(folder / "in", [ArgumentType("f32", (COUNT,))], [data])
        self.programs = Programs(opened, "main", None, inputs, Parameters())  # type: ignore[arg-type]
        assert self.programs.make_reference(self.build(body)) == ""

    def build(self, body: str) -> Build:
        place = self.folder / f"{abs(hash(body))}.vmfb"
        asked = CompileRequest(source(body), FLAGS, destination=place)
        assert self.compilers.ask(compile_source, asked) == place
        return Build(place.stem, DEFAULT_VARIANT, None, place)
