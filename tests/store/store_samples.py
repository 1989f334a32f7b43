"""Records for the tests of the database."""

from __future__ import annotations

from tilewright.store import RunRecord, TaskKey, TaskResult
from tilewright.trial import Configuration, Status, Trial
from tilewright.workload import Dim, Workload

ODD_VALUES = {
    "tuple": (1, 2, 3),
    "empty": (),
    "one": (7,),
    "true": True,
    "false": False,
    "int_one": 1,
    "zero": 0,
    "negative": -5,
    "huge": 2**80,
    "text": "DoubleTilingExpert",
    "digits": "12",
    "nothing": "",
    "brackets": "[1, 2]",
    "unicode": "größe 🧱",
    "surrogate": "\udc80",
    "quote'\"; DROP TABLE trials; --": 'a"b\\c\n\0',
}


def matmul(m: int = 64, body: str = "b") -> Workload:
    return Workload(
        kind="contraction",
        dims=(Dim("m", m), Dim("n", 32), Dim("k", 16, True)),
        element_types=("f32", "f32", "f32"),
        layout=("(d0,d1,d2)->(d0,d2)",),
        body=body,
        attributes=(("a", "b"),),
    )


def key(m: int = 64, **others: str) -> TaskKey:
    return TaskKey(matmul(m), **({"target": "cpu", "compiler": "3.13.0", "flags": "f"} | others))


def run_record(**others: str) -> RunRecord:
    return RunRecord(
        **(
            {
                "program": "m.mlir",
                "program_digest": "p",
                "target": "cpu",
                "compiler": "3.13.0",
                "options_digest": "o",
            }
            | others
        ),  # type: ignore[arg-type]
        options={"effort": "quick", "seed": 3},
        seed=3,
    )


def trial(n: int, **others: object) -> Trial:
    values: dict[str, object] = {"status": Status.OK, "time_s": 0.001 * (n + 1)}
    return Trial(Configuration.of({"tile": (n, 8)}), **(values | others))  # type: ignore[arg-type]


def result(speedup: float = 2.0, **values: object) -> TaskResult:
    return TaskResult(
        **(
            {
                "configuration": Configuration.of({"tile": (4, 4), "peel": True}),
                "default_s": speedup,
                "tuned_s": 1.0,
                "speedup_low": speedup - 0.1,
                "speedup_high": speedup + 0.1,
                "verification": "float64 NumPy",
                "trials": 64,
            }
            | values
        )  # type: ignore[arg-type]
    )
