"""What is isolated is what runs: alone, every dispatch is the code that it is in its program."""

from pathlib import Path

import pytest

import convolution_networks as networks
import dispatch_corpus as corpus
from tilewright.measure.jobs import WorkerState
from tilewright.tuning.extract_tasks import (
    ConfigureRequest,
    ExtractRequest,
    configure_dispatch,
    extract_dispatches,
)
from tilewright.tuning.variants import BUILT_IN

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.mlir"))
# Real models, where there are some beside the checkout.
MODELS = sorted((ROOT.parent / "shared" / "models").glob("*.mlir"))
NETWORKS = {
    f"{name} {layout}": make(layout)
    for layout in networks.LAYOUTS
    for name, make in (("network", networks.network), ("strided", networks.strided))
}


def read(source: str | bytes, folder: Path, flags: tuple[str, ...] = (), arguments=()):
    """The dispatches that the program runs, and what becomes of each alone."""
    flags = (*corpus.FLAGS, *flags)
    path = folder / "program.mlir"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    state = WorkerState()
    request = ExtractRequest(path, flags, folder / "out", arguments=arguments)
    dispatches = [d for d in extract_dispatches(state, request).dispatches if d.count]
    assert dispatches
    alone = [d for d in dispatches if d.isolated is not None]
    skipped = [d.reason for d in dispatches if d.isolated is None]
    return [(d, configure_dispatch(state, ConfigureRequest(d, flags))) for d in alone], skipped


def check(source: str | bytes, folder: Path, flags: tuple[str, ...] = ()) -> None:
    found, skipped = read(source, folder, flags)
    assert not skipped
    assert [(d.entry, facts.reason) for d, facts in found if facts.differs] == []


QUICK = [
    ("network nchw", "default"),
    ("network nhwc", "data-tiling"),
    *((f"strided {layout}", v) for layout in networks.LAYOUTS for v in ("default", "im2col")),
]


@pytest.mark.parametrize(("name", "variant"), QUICK)
def test_generated_networks(name, variant, tmp_path):
    check(NETWORKS[name], tmp_path, BUILT_IN[variant].flags)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples(path, tmp_path):
    check(path.read_bytes(), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("variant", BUILT_IN)
@pytest.mark.parametrize("name", NETWORKS)
def test_generated_networks_under_every_variant(name, variant, tmp_path):
    check(NETWORKS[name], tmp_path, BUILT_IN[variant].flags)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [v for v in BUILT_IN if v != "default"])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_under_every_variant(path, variant, tmp_path):
    check(path.read_bytes(), tmp_path, BUILT_IN[variant].flags)


@pytest.mark.slow
@pytest.mark.skipif(not MODELS, reason="the models are not beside the checkout")
@pytest.mark.parametrize("variant", BUILT_IN)
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_models_under_every_variant(path, variant, tmp_path):
    check(path.read_bytes(), tmp_path, (*corpus.STABLEHLO, *BUILT_IN[variant].flags))
