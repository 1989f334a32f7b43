"""What IREE's importer gets wrong or does not take of PyTorch has the numbers that PyTorch has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'tilewright[torch]'"
)

import torch.nn.functional as F  # noqa: E402
from compiled_onnx import imported_numbers  # noqa: E402

from tilewright.ir.fx_import import decomposed, import_exported, write_weights  # noqa: E402
from tilewright.ir.importing import PARAMETER_SCOPE, import_pt2  # noqa: E402


def random(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


def whole(*shape: int) -> Any:
    return (random(*shape) * 100).to(torch.int32)


def image() -> Any:
    return random(1, 4, 12, 10)


class Called(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs)


Case = tuple[Callable[..., Any], tuple[Any, ...]]


def sampled(**how: Any) -> Case:
    return lambda x, at: F.grid_sample(x, at, **how), (random(2, 3, 7, 5), random(2, 4, 6, 2))


def padded(*pads: int, mode: str = "constant") -> Case:
    return lambda x: F.pad(x, pads, mode=mode), (image(),)


def transposed(*filters: int, **how: Any) -> Case:
    return lambda x, w: F.conv_transpose2d(x, w, groups=4, **how), (image(), random(*filters))


def smoothed(size: tuple[int, int], mode: str, **how: Any) -> Case:
    return lambda x: F.interpolate(x, size, mode=mode, antialias=True, **how), (image(),)


def larger(mode: str, *given: int, **how: Any) -> Case:
    how = how or {"scale_factor": 2}
    return lambda x: F.interpolate(x, mode=mode, **how), (random(*given),)


def folded(block: int, *given: int, **how: Any) -> Case:
    return lambda x: F.fold(x, (12, 10), block, **how), (random(*given),)


CASES: dict[str, Case] = {
    "places between pixels": sampled(align_corners=False),
    "the nearest pixels, at the edge": sampled(
        mode="nearest", padding_mode="border", align_corners=False
    ),
    "mirrored places": sampled(padding_mode="reflection", align_corners=True),
    "twice as large": larger("bilinear", 1, 3, 4, 5),
    "twice as large, the outermost stay": larger(
        "bilinear", 1, 3, 4, 5, size=(8, 15), align_corners=True
    ),
    "larger along one dimension": larger("linear", 2, 3, 5, size=10),
    "larger volumes": larger("trilinear", 1, 2, 3, 4, 2, scale_factor=(2.0, 1.0, 3.0)),
    "twice each": larger("nearest", 1, 3, 4, 5),
    "twice each, exactly": larger("nearest-exact", 1, 3, 4, 5, size=(12, 5)),
    "half as large again": larger("bilinear", 1, 3, 4, 6, scale_factor=1.5),
    "of another size": larger("bilinear", 1, 3, 4, 6, size=(7, 5)),
    "of another size, the outermost stay": larger(
        "bilinear", 1, 3, 4, 6, size=(7, 3), align_corners=True
    ),
    "some pixels of single channels, and windows of them": (
        lambda x, w, v: F.relu(
            F.conv2d(x, w, stride=2, groups=4) + F.conv2d(x, v, stride=2, padding=1, groups=4)
        ),
        (image(), random(4, 1, 1, 1), random(4, 1, 3, 3)),
    ),
    "some elements of single channels": (
        lambda x, w, b: F.conv1d(x, w, b, stride=3, groups=4),
        (random(2, 4, 11), random(8, 1, 1), random(8)),
    ),
    "instances": (lambda x: F.instance_norm(x), (image(),)),
    "instances, weighted": (
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        (image(), random(4), random(4)),
    ),
    "a slope for each channel": (F.prelu, (image(), random(4))),
    "one slope": (F.prelu, (image(), random(1))),
    "a sum of exponentials": (lambda x: x.logsumexp(2), (image(),)),
    "rests": (lambda x: torch.fmod(x, 0.7), (image(),)),
    "distances": (torch.cdist, (random(1, 5, 8), random(1, 6, 8))),
    "distances along axes": (lambda a, b: torch.cdist(a, b, 1.0), (random(5, 8), random(6, 8))),
    "elements taken away": padded(-1, 2, 0, -1),
    "mirrored on one side": padded(1, 2, 3, 0, mode="reflect"),
    "mirrored on both": padded(1, 2, 3, 1, mode="reflect"),
    "around": padded(1, 2, 2, 1, mode="circular"),
    "as large as the image": (
        lambda x, w: F.conv2d(x, w, padding="same", dilation=(1, 3)),
        (image(), random(6, 4, 4, 2)),
    ),
    "single channels": transposed(4, 1, 4, 4, stride=2, padding=1),
    "more at their ends": transposed(
        4, 2, 3, 2, stride=(2, 3), padding=(1, 0), output_padding=(1, 2)
    ),
    "single channels of a line": (
        lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2, padding=1, groups=4),
        (random(2, 4, 20), random(4, 1, 4), random(4)),
    ),
    "blocks side by side": folded(2, 2, 16, 30, stride=2),
    "blocks over each other": folded(3, 1, 36, 30, stride=2, padding=1),
    "volumes made larger": (lambda x: F.interpolate(x, scale_factor=2.0), (random(1, 4, 4, 5, 6),)),
    "one mean of each channel": (lambda x: F.adaptive_avg_pool2d(x, 1), (image(),)),
    "means of equal windows": (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), (image(),)),
    "means of windows of their own": (lambda x: F.adaptive_avg_pool2d(x, (5, 3)), (image(),)),
    "means of an image of that size": (lambda x: F.adaptive_avg_pool2d(x, (12, 10)), (image(),)),
    "means of more than there is": (lambda x: F.adaptive_avg_pool1d(x, 13), (random(4, 9),)),
    "means of volumes": (
        lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)),
        (random(1, 4, 4, 5, 6),),
    ),
    "largest of equal windows": (lambda x: F.adaptive_max_pool2d(x, (3, 5)), (image(),)),
    "largest of windows of their own": (lambda x: F.adaptive_max_pool2d(x, (5, 3)), (image(),)),
    "where the largest are": (
        lambda x: F.adaptive_max_pool2d(x, (5, 3), return_indices=True)[1],
        (image(),),
    ),
    "how loud each frequency is": (lambda x: torch.fft.rfft(x).abs(), (random(3, 16),)),
    "how loud over time": (
        lambda x, w: torch.stft(x, 16, 4, window=w, return_complex=True).abs(),
        (random(2, 64), random(16)),
    ),
    "made smaller smoothly": smoothed((5, 7), "bilinear"),
    "made larger smoothly": smoothed((17, 23), "bilinear"),
    "made smaller smoothly, cubic": smoothed((5, 4), "bicubic"),
    "made smaller smoothly by a factor": (
        lambda x: F.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True),
        (image(),),
    ),
    "made smaller smoothly, by corners": smoothed((5, 4), "bicubic", align_corners=True),
    "the largest of many": (lambda x: torch.topk(x, 20)[0], (random(2, 700),)),
    "where the smallest of many are": (
        lambda x: torch.topk(x, 7, dim=1, largest=False)[1],
        (random(2, 900, 3),),
    ),
    "the nearest": (
        lambda x: (x.mT @ x - (x * x).sum(1)[:, None] - (x * x).sum(1)[..., None]).topk(8)[0],
        (random(1, 3, 512),),
    ),
    "the first of equal ones": (
        lambda x: x.sort(dim=1, stable=True, descending=True)[1],
        (whole(3, 40, 2) // 50,),
    ),
    "in their order": (lambda x: x.sort()[0], (random(3, 50),)),
    "their order": (lambda x: x.argsort(1), (image(),)),
    "the smallest but two": (lambda x: x.kthvalue(3, dim=2, keepdim=True)[0], (image(),)),
    "largest of endless ones": (
        lambda x: torch.topk(x, 40)[0],
        (torch.where(random(1, 600) > 2, random(1, 600), -torch.inf),),
    ),
    "bits of both": (lambda a, b: (a & b) | (a ^ 5), (whole(4, 5), whole(4, 5))),
    "both conditions": (lambda x: torch.where((x > 0) & (x < 1), x, -x), (image(),)),
    "cubic": (
        lambda x: F.interpolate(x, size=(17, 23), mode="bicubic", align_corners=False),
        (image(),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_numbers_are_those_of_pytorch(tmp_path: Path, name: str) -> None:
    function, inputs = CASES[name]
    module = Called(function).eval()
    program = tmp_path / "net.mlir"
    constants = import_exported(decomposed(torch.export.export(module, inputs)), program)
    write_weights(constants, tmp_path / "net.irpa")
    weights = [(PARAMETER_SCOPE, tmp_path / "net.irpa")] if constants else []
    found = imported_numbers(program, weights, *(one.numpy() for one in inputs))
    expected = module(*inputs).numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, (3, 5), (5, 3)])
def test_pooling_to_a_size_does_not_ask_of_each_element_where_it_belongs(size: Any) -> None:
    program = torch.export.export(Called(lambda x: F.adaptive_avg_pool2d(x, size)), (image(),))
    assert not any("adaptive" in str(node.target) for node in decomposed(program).graph.nodes)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("larger", "twice"))])
def test_what_becomes_larger_by_whole_numbers_is_not_gathered(name: str) -> None:
    function, inputs = CASES[name]
    program = decomposed(torch.export.export(Called(function), inputs))
    assert not [node for node in program.graph.nodes if "upsample" in str(node.target)]


class Scaled(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("share", torch.linspace(-1, 1, 120, dtype=torch.float64).view(4, 30))

    def forward(self, x: Any) -> Any:
        return (x * self.share).sum(-1).float()


def test_buffers_of_f64_in_a_file_are_those_that_the_compiler_computes_with(
    tmp_path: Path,
) -> None:
    module, x = Scaled().eval(), random(4, 30)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "net.pt2")
    found = imported_numbers(*import_pt2(tmp_path / "net.pt2", tmp_path), x.numpy())
    np.testing.assert_allclose(found, module(x).numpy(), rtol=1e-5, atol=1e-5)
