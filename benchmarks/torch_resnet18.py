"""A ResNet-18 in plain PyTorch: eager, torch.compile, untuned IREE and tuned, in one table.

    python benchmarks/torch_resnet18.py --time-limit 5m --threads 2
    python benchmarks/torch_resnet18.py --result tuned       (compare only, with an earlier result)

Results are compared with PyTorch's eager ones first, by the bound that tuning holds programs to.
Times are of interleaved rounds in one process; each is the median, with the 95% interval of it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tilewright.torch
from tilewright.ir.importing import PROGRAM_NAME
from tilewright.measure.comparison import ComparisonPolicy, interleaved_rounds
from tilewright.measure.statistics import median_interval
from tilewright.measure.verify import compare
from tilewright.target import parse_target
from tilewright.tuning.events import Event, Note, PhaseStarted
from tilewright.tuning.outputs import VMFB
from tilewright.tuning.programs import PROGRAM_REDUCTION_LENGTH


class Block(nn.Module):  # type: ignore[misc]
    """Two 3x3 convolutions and what goes around them (He et al. 2015, figure 2)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outside)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.around = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.around(x))


class ResNet18(nn.Module):  # type: ignore[misc]
    """torchvision's resnet18: a stem, eight blocks, a classifier of 1000."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.blocks = nn.Sequential(
            *(
                block
                for inside, outside, stride in widths
                for block in (Block(inside, outside, stride), Block(outside, outside, 1))
            )
        )
        self.classifier = nn.Linear(512, 1000)

    def forward(self, x: Any) -> Any:
        y = self.blocks(self.stem(x))
        return self.classifier(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))


def network() -> ResNet18:
    """Random weights, with norms as a few batches make them."""
    torch.manual_seed(0)
    model = ResNet18()
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(2, 3, 224, 224))
    return model.eval()


def untuned(tuned: Any, model: ResNet18, threads: int, folder: Path) -> Any:
    """The same program as IREE compiles it by itself, on the same tensors."""
    shutil.copytree(tuned.folder, folder)
    flags = parse_target("cpu", threads).flags
    command = [sys.executable, "-m", "iree.compiler.tools.scripts.iree_compile"]
    subprocess.run(
        [*command, str(folder / PROGRAM_NAME), *flags, "-o", str(folder / VMFB)], check=True
    )
    return tilewright.torch.load(folder, model.state_dict(), threads=threads)


def tell(event: Event) -> None:
    """Print where the run is."""
    if isinstance(event, Note | PhaseStarted):
        print(f"{time.strftime('%H:%M:%S')} {event}", file=sys.stderr, flush=True)


def sampler(call: Callable[[Any], Any], x: Any) -> Callable[[], float]:
    def sample() -> float:
        begin = time.perf_counter()
        call(x)
        return time.perf_counter() - begin

    return sample


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--time-limit", default="5m")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=101, help="0: there is no table")
    parser.add_argument("--result", type=Path, help="an earlier result: nothing is tuned")
    parser.add_argument("--output", type=Path, help="where the result is written")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, x = network(), torch.randn(1, 3, 224, 224)
    if arguments.result:
        tuned = tilewright.torch.load(arguments.result, model.state_dict())
    else:
        tuned = tilewright.torch.tune(
            model,
            x,
            effort=arguments.effort,
            time_limit=arguments.time_limit,
            threads=arguments.threads,
            output=arguments.output,
            on_event=tell,
        )
    compiled = torch.compile(model)
    if arguments.rounds:
        with tempfile.TemporaryDirectory() as work, torch.no_grad():
            plain = untuned(tuned, model, arguments.threads, Path(work) / "untuned")
            table(
                {
                    "PyTorch, eager": model,
                    "torch.compile (inductor)": compiled,
                    "IREE, untuned": plain,
                    "tilewright.torch.tune": tuned,
                },
                x,
                arguments.rounds,
            )


def table(ways: dict[str, Callable[[Any], Any]], x: Any, rounds: int) -> None:
    """Print each way's largest error and time."""
    expected, errors = ways["PyTorch, eager"](x).double().numpy(), {}
    for name, call in ways.items():
        found = compare(call(x).double().numpy(), expected, "f32", PROGRAM_REDUCTION_LENGTH)
        errors[name] = f"{found.error:.2g} of {found.tolerance:.2g}" if found.ok else str(found)
    policy = ComparisonPolicy(rounds=rounds, max_s=200.0)
    samples = interleaved_rounds([sampler(call, x) for call in ways.values()], policy)
    eager = median_interval(samples[0]).value
    print("| ResNet-18, 224x224, batch 1, f32 | error | ms | interval | over eager |")
    print("|---|---|---|---|---|")
    for name, times in zip(ways, samples, strict=True):
        one = median_interval(times)
        print(
            f"| {name} | {errors[name]} | {one.value * 1e3:.1f} | "
            f"{one.low * 1e3:.1f} to {one.high * 1e3:.1f} | {one.value / eager:.2f} |"
        )


if __name__ == "__main__":
    main()
