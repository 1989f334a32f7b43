"""JAX's functions tuned and called."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'tilewright[jax]'")

import numpy as np  # noqa: E402
from jax import export  # noqa: E402

import tilewright.jax  # noqa: E402
from tilewright.errors import UserError  # noqa: E402
from tilewright.ir.program import load_program  # noqa: E402

QUICK: dict[str, Any] = {"effort": "quick", "max_trials": 2, "variants": "default", "threads": 1}


@pytest.fixture(scope="module", autouse=True)
def own_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("data")
        patch.setenv("TILEWRIGHT_DB", str(folder / "trials.db"))
        yield folder


TABLE = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)


@jax.jit
def apply(weights: Any, batch: Any) -> Any:
    """A product in a jitted function of its own, a table of NumPy's, a tree of results."""
    hidden = jax.nn.relu(jax.jit(lambda x: x @ weights["w"])(batch["x"]) + weights["b"])
    return {"out": hidden @ TABLE, "top": (hidden.argmax(axis=1), batch["scale"] * 2)}


def arguments(seed: int) -> tuple[Any, Any]:
    one, two = jax.random.split(jax.random.key(seed))
    weights = {"w": jax.random.normal(one, (8, 4)), "b": jax.numpy.ones(4)}
    batch = {"x": jax.random.normal(two, (5, 8)), "scale": 3.0, "unused": jax.numpy.zeros(2)}
    return weights, batch


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Any:
    weights, batch = arguments(0)
    folder = tmp_path_factory.mktemp("tuned") / "apply"
    return tilewright.jax.tune(functools.partial(apply, weights), batch, output=folder, **QUICK)


def test_a_tuned_function_computes_what_the_function_does(tuned: Any) -> None:
    weights, _ = arguments(0)
    _, batch = arguments(1)
    found, wanted = tuned(batch), apply(weights, batch)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert one.dtype == other.dtype
    assert tuned.program.copied == 0
    assert tuned.result.program.verified


def test_arrays_that_it_closes_over_stay_outside_the_program(tuned: Any) -> None:
    text = (tuned.folder / "program.mlir").read_text()
    assert text.count("#stream.parameter.named") == 3
    assert "dense_resource" not in text


def test_loaded_again(tuned: Any) -> None:
    _, batch = arguments(2)
    loaded = tilewright.jax.load(tuned.folder)
    np.testing.assert_array_equal(loaded(batch)["out"], tuned(batch)["out"])
    with pytest.raises(UserError, match="was tuned for arguments"):
        loaded(batch["x"])
    with pytest.raises(UserError, match=r"has no jax\.json"):
        tilewright.jax.load(tuned.folder.parent)


def test_what_cannot_be_traced_is_told() -> None:
    def choosing(x: Any) -> Any:
        return x if x > 0 else -x

    with pytest.raises(UserError, match="choosing: JAX cannot trace it"):
        tilewright.jax.tune(choosing, 1.0, **QUICK)


def test_portable_artifacts_are_read(tmp_path: Path) -> None:
    exported = export.export(jax.jit(lambda x: jax.numpy.tanh(x) * 2))(jax.numpy.ones((4, 8)))
    path = tmp_path / "f.mlirbc"
    path.write_bytes(exported.mlir_module_serialized)
    program = load_program(path, tmp_path)
    assert program.dialect == "stablehlo"
    assert list(program.functions) == ["main"]
