"""PyTorch's modules tuned and called, and torch.compile with what was tuned."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'tilewright[torch]'"
)

import tilewright.torch  # noqa: E402
from tilewright.errors import UserError  # noqa: E402
from tilewright.ir.fx_import import decomposed, import_exported  # noqa: E402
from tilewright.torch.exporting import calling_form, export, weights_of  # noqa: E402
from tilewright.torch.tuned_module import CALLING_FORM  # noqa: E402
from tilewright.torch.tuning import find  # noqa: E402
from tilewright.tuning.outputs import MANIFEST  # noqa: E402

QUICK: dict[str, Any] = {
    "effort": "quick",
    "max_trials": 2,
    "variants": "default",
    "threads": 1,
}


def network(channels: int = 4) -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, channels, 3, padding=1),
        torch.nn.BatchNorm2d(channels),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.5),
        torch.nn.Flatten(),
        torch.nn.Linear(channels * 64, 10),
    )


def image(seed: int = 0) -> Any:
    return torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module", autouse=True)
def own_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("data")
        patch.setenv("XDG_DATA_HOME", str(folder))
        patch.setenv("TILEWRIGHT_DB", str(folder / "trials.db"))
        yield folder


@pytest.fixture(scope="module")
def module() -> Any:
    torch.manual_seed(1)
    return network().eval()


@pytest.fixture(scope="module")
def tuned(module: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tuned") / "net"
    return tilewright.torch.tune(module, image(), output=folder, **QUICK)


def equal(one: Any, other: Any) -> bool:
    return bool(torch.allclose(one, other, rtol=1e-4, atol=1e-5))


@torch.no_grad()
def test_a_tuned_module_computes_what_the_module_does(tuned: Any, module: Any) -> None:
    x = image(2)
    assert equal(tuned(x), module(x))
    assert tuned.copied == 0
    assert tuned.result.program.verified
    assert (tuned.folder / "model.irpa").is_file()


@torch.no_grad()
def test_weights_are_the_modules_own(tuned: Any, module: Any) -> None:
    x = image(3)
    before = tuned(x)
    module[5].bias.add_(1.0)
    module[1].running_mean.add_(0.5)
    assert not equal(tuned(x), before)
    assert equal(tuned(x), module(x))
    other = network().eval()
    tuned.set_weights(other.state_dict())
    assert equal(tuned(x), other(x))
    tuned.set_weights(module.state_dict())
    with pytest.raises(UserError, match=r"no weight '0.weight'"):
        tuned.set_weights({})


@torch.no_grad()
def test_what_lies_otherwise_is_copied(tuned: Any, module: Any) -> None:
    odd = torch.randn(193)[1:].view(1, 3, 8, 8)
    assert equal(tuned(odd), module(odd))
    assert tuned.copied == 1


def test_results_stay_what_they_are(tuned: Any) -> None:
    with torch.no_grad():
        one = tuned(image())
        before, two = one.clone(), tuned(image(1))
    assert equal(one, before)
    assert not equal(one, two)


def test_what_cannot_be_passed_is_told(tuned: Any) -> None:
    with pytest.raises(UserError, match=r"argument 1 needs a gradient"):
        tuned(image().requires_grad_())
    with pytest.raises(UserError, match=r"argument 1 is torch\.sparse"):
        tuned(image().to_sparse())
    with pytest.raises(UserError, match="tuned for arguments") as told:
        tuned(image(), image())
    assert "\n" not in str(told.value)
    with pytest.raises(UserError, match="the call failed"):
        tuned(torch.zeros(1, 3, 8, 9))


@torch.no_grad()
def test_saved_and_loaded(tuned: Any, module: Any, tmp_path: Path) -> None:
    x = image(4)
    loaded = tilewright.torch.load(tuned.save(tmp_path / "copy"))
    assert equal(loaded(x), module(x))
    assert loaded.result.program == tuned.result.program
    assert equal(torch.from_numpy(tilewright.load(tmp_path / "copy")(x.numpy())), module(x))
    with pytest.raises(UserError, match="it is there already"):
        tuned.save(tmp_path / "copy")
    with pytest.raises(UserError, match=r"has no torch\.json"):
        tilewright.torch.load(tmp_path)


@torch.no_grad()
def test_torch_compile_finds_what_was_tuned_with_other_weights(tuned: Any) -> None:
    other, x = network().eval(), image(5)
    compiled = torch.compile(other, backend="tilewright")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert equal(compiled(x), other(x))
        other[5].bias.add_(2.0)
        assert equal(compiled(x), other(x))


@torch.no_grad()
def test_torch_compile_never_tunes_unless_told_to(
    monkeypatch: pytest.MonkeyPatch, own_data: Path
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("tilewright.api.tune", lambda *a, **k: asked.append(k) or 1 / 0)
    torch.compiler.reset()
    other, x = network(5).eval(), image(6)
    with pytest.warns(UserWarning, match="tuned for weights of other sizes"):
        assert equal(torch.compile(other, backend="tilewright")(x), other(x))
    assert not asked
    torch.compiler.reset()
    told = torch.compile(other, backend="tilewright", options={"tune": {"effort": "quick"}})
    with pytest.raises(ZeroDivisionError):
        told(x)
    assert asked[0]["effort"] == "quick"


def test_torch_compile_leaves_gradients_to_pytorch(tuned: Any) -> None:
    torch.compiler.reset()
    other = network().eval()
    with pytest.warns(UserWarning, match="gradients are wanted"):
        torch.compile(other, backend="tilewright")(image()).sum().backward()
    assert other[5].bias.grad is not None


def test_the_digest_is_of_what_is_computed(tuned: Any) -> None:
    same, wider = (export(network(n), (image(),)) for n in (4, 5))
    assert calling_form(same).digest == tuned.form.digest != calling_form(wider).digest
    assert find(tuned.form).folder == tuned.folder
    assert find(tuned.form, [tuned.folder.parent]).folder == tuned.folder


def test_why_a_result_is_not_used(tuned: Any, tmp_path: Path) -> None:
    larger = calling_form(export(network(), (torch.randn(2, 3, 8, 8),)))
    assert find(larger).folder is None
    told = find(larger).why
    assert "tuned for arguments 1x3x8x8xf32, these are 2x3x8x8xf32" in told
    assert str(tuned.folder) in told
    wider = calling_form(export(network(5), (image(),)))
    assert "tuned for weights of other sizes" in find(wider).why
    strange = calling_form(export(torch.nn.Softplus(), (image(),)))
    assert find(strange).why == "it was not tuned"
    # A folder that cannot be read is in nobody's way but that of what it is for.
    (tmp_path / "a").mkdir()
    for name in (CALLING_FORM, MANIFEST):
        (tmp_path / "a" / name).write_text("{")
    assert find(tuned.form, [tmp_path]).folder == tuned.folder
    assert "cannot be read" in find(strange, [tmp_path]).why
    # The same result from a machine with another processor.
    there = tmp_path / "b"
    shutil.copytree(tuned.folder, there)
    manifest = json.loads((there / MANIFEST).read_text())
    manifest["measured_on"]["processor"] = "another"
    (there / MANIFEST).write_text(json.dumps(manifest))
    form = replace(tuned.form, digest="0" * 64)
    (there / CALLING_FORM).write_text(form.to_json())
    assert re.search(r"another machine or IREE: other processor \(.*b\)", find(form, [there]).why)


def test_weights_stay_outside_the_program(tmp_path: Path) -> None:
    module = network().train()
    program = export(module, (image(),))
    assert module.training
    assert module[3].training
    weights = import_exported(program, tmp_path / "net.mlir")
    assert set(weights) == set(calling_form(program).weights)
    assert weights["5.weight"].data_ptr() == module[5].weight.data_ptr()
    assert weights_of(program)["5.weight"].data_ptr() == module[5].weight.data_ptr()
    text = (tmp_path / "net.mlir").read_text()
    assert "dense" not in text
    assert '"model"::"5.weight"' in text


class Several(torch.nn.Module):  # type: ignore[misc]
    """Arguments by name, constants, trees of results, a table that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(6.0).view(2, 3), persistent=False)

    def forward(self, x: Any, *, scale: int, shift: Any) -> Any:
        offset = torch.tensor([1.0, 2.0, 3.0])
        y = x * scale + shift + self.table.sum() + offset
        return {
            "sum": y,
            "pair": (torch.special.expit(y) > 0.5, None),
            "steps": (x * 3).to(torch.int64),
        }


@torch.no_grad()
def test_calls_have_the_modules_own_form(tmp_path: Path) -> None:
    module, x = Several(), torch.randn(2, 3)
    arguments = {"scale": 2, "shift": torch.ones(3)}
    tuned = tilewright.torch.tune(module, x, arguments, output=tmp_path / "out", **QUICK)
    found, wanted = tuned(x, **arguments), module(x, **arguments)
    assert equal(found["sum"], wanted["sum"])
    assert torch.equal(found["pair"][0], wanted["pair"][0])
    assert found["pair"][1] is None
    assert torch.equal(found["steps"], wanted["steps"])
    with pytest.raises(UserError, match="argument 2: the module was tuned for 2, this is 3"):
        tuned(x, scale=3, shift=torch.ones(3))


@torch.no_grad()
def test_f64_is_computed_in_f64(tmp_path: Path) -> None:
    module = torch.nn.Linear(16, 4).double()
    x = torch.randn(3, 16, dtype=torch.float64)
    tuned = tilewright.torch.tune(module, x, output=tmp_path / "out", **QUICK)
    assert tuned(x).dtype == torch.float64
    assert torch.allclose(tuned(x), module(x), rtol=1e-12)
    with pytest.raises(UserError, match=r"^Tanh computes in f64, for which .*: make it f32\."):
        tilewright.torch.tune(torch.nn.Tanh(), x, output=tmp_path / "tanh", **QUICK)
    with pytest.raises(UserError, match=r"^--effort: unknown effort"):
        tilewright.torch.tune(module, x, output=tmp_path / "mistake", effort="quickest")


def test_what_changes_its_buffers_is_refused(tmp_path: Path) -> None:
    class Counting(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count.add_(1)
            return x + self.count

    program = decomposed(torch.export.export(Counting(), (torch.zeros(2),)))
    with pytest.raises(UserError, match=r"changes its buffers when it runs \(count\)"):
        import_exported(program, tmp_path / "net.mlir")


def test_what_changes_its_arguments_is_refused(tmp_path: Path) -> None:
    class Adding(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.add_(1) * 2

    with pytest.raises(UserError, match=r"changes its arguments when it runs \(x\)"):
        tilewright.torch.tune(Adding(), torch.zeros(3), output=tmp_path / "out", **QUICK)
    torch.compiler.reset()
    x = torch.zeros(3)
    with torch.no_grad(), pytest.warns(UserWarning, match="it was not tuned"):
        assert torch.equal(torch.compile(Adding(), backend="tilewright")(x), torch.full((3,), 2.0))
    assert torch.equal(x, torch.ones(3))


def test_weights_on_another_device_are_told() -> None:
    with pytest.raises(UserError, match=r"weight 'weight' is on the device 'meta'.*module\.cpu"):
        export(torch.nn.Linear(3, 2, device="meta"), (torch.zeros(1, 3, device="meta"),))


@torch.no_grad()
def test_what_is_not_pytorchs_is_never_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*given: Any) -> None:
        raise UserError("result 1 is not PyTorch's")

    class Stand(torch.nn.Tanhshrink):  # type: ignore[misc]
        folder = tmp_path / "out"

    monkeypatch.setattr("tilewright.torch.tuning.check_results", other)
    monkeypatch.setattr("tilewright.api.tune", lambda *a, output, **k: output.mkdir())
    monkeypatch.setattr("tilewright.torch.tuning.TunedModule", lambda *a: Stand())
    module = torch.nn.Tanhshrink()
    with pytest.raises(UserError, match="is not PyTorch's"):
        tilewright.torch.tune(module, image(), output=tmp_path / "out", **QUICK)
    assert not (tmp_path / "out" / CALLING_FORM).exists()
    assert find(calling_form(export(module, (image(),)))).folder is None


def test_autocast_is_left_to_pytorch() -> None:
    model, x = torch.nn.Linear(8, 4).eval(), torch.ones(2, 8)
    torch.compiler.reset()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(UserError, match=r"Linear: torch\.autocast is on"):
            export(model, (x,))
        with pytest.warns(UserWarning, match=r"called under torch\.autocast"):
            found = torch.compile(model, backend="tilewright")(x)
        assert torch.equal(found, model(x))


def test_what_cannot_be_exported_is_told() -> None:
    class Choosing(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(UserError, match=r"Choosing: torch\.export cannot export it"):
        export(Choosing(), (torch.zeros(2),))
