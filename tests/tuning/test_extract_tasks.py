"""What is isolated is what runs: alone, every dispatch is the code that it is in its program."""

from dataclasses import replace
from pathlib import Path

import pytest
from iree.compiler import ir

import convolution_networks as networks
import dispatch_corpus as corpus
from tilewright.ir.session import CompileError
from tilewright.measure.jobs import WorkerState
from tilewright.tuning.extract_tasks import (
    ConfigureRequest,
    DispatchFacts,
    ExtractRequest,
    configure_dispatch,
    configure_dispatches,
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
    requests = [ConfigureRequest(d, flags) for d in alone]
    return list(zip(alone, configure_dispatches(state, requests), strict=True)), skipped


def folder_of(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def check(source: str | bytes, folder: Path, flags: tuple[str, ...] = ()) -> None:
    found, skipped = read(source, folder, flags)
    assert not skipped
    assert [(d.entry, facts.reason) for d, facts in found if facts.differs] == []


@pytest.mark.parametrize("variant", ["default", "data-tiling"])
def test_together_each_is_what_it_is_alone(variant, tmp_path):
    flags = (*corpus.FLAGS, *BUILT_IN[variant].flags)
    found, _ = read(NETWORKS["network nhwc"], tmp_path, BUILT_IN[variant].flags)
    assert len(found) > 4
    written = [dispatch.configured.read_text() for dispatch, _ in found]
    state = WorkerState()
    for (dispatch, facts), text in zip(found, written, strict=True):
        alone = configure_dispatch(state, ConfigureRequest(dispatch, flags))
        assert alone == facts
        if not dispatch.encoded:
            # Dispatches that encode operands are counted through in their names.
            assert dispatch.configured.read_text().strip() == text.strip()


def test_dispatches_of_one_name_and_other_flags_are_not_joined(tmp_path):
    """Two programs, and one of them under other flags: each result is its own."""
    small, large = (
        read(NETWORKS[f"{name} nhwc"], folder_of(tmp_path, name)) for name in ("network", "strided")
    )
    requests = [
        *(ConfigureRequest(d, corpus.FLAGS) for found, _ in (small, large) for d, _ in found),
        ConfigureRequest(small[0][0][0], (*corpus.FLAGS, "--iree-llvmcpu-enable-ukernels=all")),
    ]
    found = configure_dispatches(WorkerState(), requests)
    expected = [facts for found, _ in (small, large) for _, facts in found]
    assert found[:-1] == expected
    assert isinstance(found[-1], DispatchFacts)


def test_one_that_cannot_be_read_leaves_the_others_to_be_done_one_by_one(tmp_path):
    (found, _) = read(NETWORKS["network nhwc"], tmp_path)
    requests = [ConfigureRequest(d, corpus.FLAGS) for d, _ in found]
    broken = ConfigureRequest(replace(found[0][0], isolated=tmp_path / "broken.mlir"), corpus.FLAGS)
    broken.dispatch.file.write_text("no module")
    state = WorkerState()
    with pytest.raises(ir.MLIRError):
        configure_dispatches(state, [broken, *requests[1:]])
    # As whoever asked for them together does then.
    with pytest.raises(CompileError):
        configure_dispatch(state, broken)
    assert configure_dispatch(state, requests[1]) == found[1][1]


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
