"""The providers there are: each as far as its library is installed here."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright import api
from tilewright.compare import PROVIDERS, CompareOptions, ProviderOutcome, compare, find_providers
from tilewright.compare.comparison_options import Budget, Place
from tilewright.compare.providers.interface import Built, PrepareRequest
from tilewright.compare.providers.iree import Iree
from tilewright.compare.workloads import find_workloads
from tilewright.errors import UserError
from tilewright.measure.device_options import DeviceOptions
from tilewright.target import parse_target

OPTIONS = CompareOptions(
    parse_target("cpu", 1), rounds=6, min_sample_s=0.002, peak=False, budget=Budget(trials=2)
)
OPERATIONS = (
    "matmul_24x20x28_f32t_f32t_f32t",
    "matmul_bias_relu_12x20x8_f32t_f32n_f32t",
    "batch_matmul_3x8x12x16_f32n_f32t_f32t",
    "conv2d_nhwc_hwcf_1x9x8x3x5_k3x2_s2x1_d1x2_p1x1_f32t_f32t_f32t",
)


def test_every_provider_says_what_it_is() -> None:
    for name, provider in PROVIDERS.items():
        assert provider.name == name
        assert provider.about
        assert bool(provider.modules) == bool(provider.pip)
        assert provider.absent() in ("", f"pip install {provider.pip}")


def test_tvm_with_ffi_of_another_version_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tvm,) = find_providers("tvm")
    versions = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
    monkeypatch.setattr("tilewright.compare.providers.interface._is_there", lambda _: True)
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    assert not tvm.absent()
    versions["apache-tvm-ffi"] = "0.1.15.post2"
    assert "apache-tvm-ffi==0.1.14.post1" in tvm.absent()
    versions["apache-tvm"] = "0.28.0"
    assert not tvm.absent()


@pytest.mark.parametrize(
    "label",
    [
        "torch",
        *(pytest.param(label, marks=pytest.mark.slow) for label in ("torch-compiled", "tvm")),
        "halide",
    ],
)
def test_a_library_where_it_is_installed(label: str) -> None:
    (provider,) = find_providers(label)
    if provider.absent():
        pytest.skip(provider.absent())
    rows = compare(find_workloads(OPERATIONS), [provider], OPTIONS).rows
    assert len(rows) == len(OPERATIONS)
    for row in rows:
        assert row.outcome is ProviderOutcome.OK, row.reason
        assert row.cores is not None
        assert row.cores <= 1.15


@pytest.mark.parametrize(
    "operation",
    [
        "softmax_9x17_f32t_f32t",
        "attention_2x8x4x6x10_f32t_f32n_f32t_f32t",
        "reduction_max_9x17_f32n_f32t",
        "elementwise_add_gelu_9x17_f32t_f32n_f32t",
        "matvec_9x17_f64n_f64t_f64t",
        "depthwise_conv2d_nchw_chw_1x8x9x3_k3x3_s1x1_d1x1_p1x1_f32t_f32t_f32t",
    ],
)
def test_numpy_and_torch_have_every_kind(operation: str) -> None:
    labels = [p for p in find_providers("numpy,torch") if not p.absent()]
    rows = compare(find_workloads([operation]), labels, OPTIONS).rows
    assert [row.provider for row in rows] == [p.label for p in labels]
    assert labels[0].label == "numpy"
    for row in rows:
        assert row.outcome is ProviderOutcome.OK, f"{row.provider}: {row.reason}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ire", "did you mean 'iree'"),
        ("iree-variant", "write iree-variant:NAME"),
        ("iree-variant:data-tilin", "data-tiling"),
        ("numpy:1", "write numpy"),
    ],
)
def test_what_is_no_provider(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        find_providers(text)


@pytest.mark.slow
def test_tuned_says_what_was_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its own variants, a compile each, are tested where they are made.
    monkeypatch.setattr(api, "tune", partial(api.tune, variants="default", effort="quick"))
    tuned = find_providers("iree-tuned")
    options = replace(OPTIONS, db=tmp_path / "database.db")
    (row,) = compare(find_workloads(OPERATIONS[:1]), tuned, options).rows
    assert row.outcome is ProviderOutcome.OK, row.reason
    assert "trials" in row.note
    assert row.progress
    best = [point[2] for point in row.progress]
    assert min(best) <= best[0]


@pytest.mark.parametrize(
    ("way", "says"),
    [
        (DeviceOptions.cpu(1), "run by --device=local-sync"),
        (replace(DeviceOptions.cpu(2), spin_us=10), "--task_worker_spin_us=10"),
    ],
)
def test_tuned_is_run_as_was_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: DeviceOptions, says: str
) -> None:
    monkeypatch.setattr(api, "tune", partial(api.tune, variants="default", effort="quick"))
    monkeypatch.setattr("tilewright.tuned.way_to_run", lambda *_: way)
    options = replace(OPTIONS, target=parse_target("cpu", 2), db=tmp_path / "database.db")
    (row,) = compare(find_workloads(OPERATIONS[:1]), find_providers("iree-tuned"), options).rows
    assert row.outcome is ProviderOutcome.OK, row.reason
    assert row.note.endswith(says)


def test_a_program_is_loaded_by_the_device_that_it_is_run_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[tuple[str, DeviceOptions, bool]] = []
    policy: list[bool] = []

    class Played:
        def __init__(self, options: DeviceOptions) -> None:
            self.options = options

        def load(self, vmfb: str, parameters: object) -> Any:
            loaded.append((vmfb, self.options, policy[-1]))
            return SimpleNamespace(bind=lambda *_: None, outputs=None)

        def arguments(self, inputs: object) -> None: ...

    monkeypatch.setattr("tilewright.compare.providers.iree.Device", Played)
    monkeypatch.setattr("tilewright.compare.providers.iree.schedule_as_batch", policy.append)
    provider = Iree()
    provider.open(Place(threads=2))
    task: Any = SimpleNamespace(parameters=(), inputs=None, function="main")
    alone, moved = DeviceOptions.cpu(1), replace(DeviceOptions.cpu(2), batch=False)
    for artifact in ("default.vmfb", ("tuned.vmfb", alone), ("moved.vmfb", moved), "other.vmfb"):
        provider.prepare(PrepareRequest(task, Built(artifact), Budget(trials=1)), [])
    own = DeviceOptions.cpu(2)
    assert loaded == [
        ("default.vmfb", own, True),
        ("tuned.vmfb", alone, True),
        ("moved.vmfb", moved, False),
        ("other.vmfb", own, True),
    ]


SCHEDULE = """
from tilewright import te

def schedule(operation):
    if operation.kind.name != "matmul":
        return None
    m, n, k = operation.sizes
    a = te.placeholder((m, k), "f32", name="a")
    b = te.placeholder((k, n), "f32", name="b")
    r = te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    s = te.create_schedule(c)
    outer, inner = s[c].split(c.op.axis[1], factor=4)
    return s, [a, b, c]
"""


def test_a_schedule_from_a_file(tmp_path: Path) -> None:
    (file := tmp_path / "mine.py").write_text(SCHEDULE)
    chosen = find_workloads([OPERATIONS[0], "softmax_9x17_f32t_f32t"])
    first, second = compare(chosen, find_providers(f"schedule:{file}"), OPTIONS).rows
    assert first.outcome is ProviderOutcome.OK, first.reason
    assert second.outcome is ProviderOutcome.ABSENT
    file.write_text("def schedule(operation):\n    return 1 // 0\n")
    (row,) = compare(chosen[:1], find_providers(f"schedule:{file}"), OPTIONS).rows
    assert row.outcome is ProviderOutcome.ERROR
    assert "ZeroDivisionError" in row.reason
    with pytest.raises(UserError, match="no such file"):
        find_providers(f"schedule:{tmp_path / 'none.py'}")
