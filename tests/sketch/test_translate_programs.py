"""Every dispatch and every site of whole programs as an expression, compared with the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from expression_evaluator import evaluate_expression
from iree.compiler import ir
from test_translate import agree, dispatch_values

from convolution_networks import LAYOUTS, network, quantised_network
from dispatch_corpus import STABLEHLO, flow_module, session
from tilewright.argument import ArgumentType
from tilewright.ir.dispatches import find_dispatches, isolate
from tilewright.ir.reference import evaluate
from tilewright.ir.session import SITE_PHASE
from tilewright.ir.sites import find_program_sites
from tilewright.sketch.translate import translate_function
from tilewright.sketch.untranslatable import Untranslatable

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = {
    **{f"network_{layout}": network(layout) for layout in LAYOUTS},
    **{
        name: (EXAMPLES / f"{name}.mlir").read_text(encoding="utf-8")
        for name in ("bottleneck", "convnet", "matmul", "mlp", "mlp_weights")
    },
}
Part = tuple[str, ir.Module, tuple[ArgumentType, ...]]


def _flags(source: str) -> tuple[str, ...]:
    return STABLEHLO if "stablehlo." in source else ()


def sites(source: str) -> Iterator[Part]:
    """The sites of a program, each as a module with its arguments."""
    compiler = session(_flags(source))
    module = compiler.parse(source.encode(), name="program")
    compiler.run(module, None, SITE_PHASE)
    for site in find_program_sites(compiler, module):
        if site.alone is not None:
            yield next(iter(site.dispatches)), site.alone.module, site.alone.arguments


def dispatches(source: str) -> Iterator[Part]:
    """The dispatches of a program, each as a module with its arguments."""
    compiler, module = session(_flags(source)), flow_module(source, _flags(source))
    for site in find_dispatches(module):
        alone = isolate(compiler, module, site)
        yield site.entry, alone.module, alone.arguments


def check(parts: Iterator[Part]) -> None:
    """All of the parts have expressions, and these compute the same."""
    refused, wrong = {}, []
    for number, (part, module, arguments) in enumerate(parts):
        try:
            inputs, outputs = translate_function(module, "main")
        except Untranslatable as refusal:
            refused[part] = str(refusal)
            continue
        values = dispatch_values(arguments, number)
        found = evaluate_expression(inputs, outputs, values)
        if not agree(found, evaluate(module, "main", values), outputs):
            wrong.append(part)
    assert (refused, wrong) == ({}, [])


def test_sites_of_a_network() -> None:
    check(sites(PROGRAMS["network_nhwc"]))


@pytest.mark.parametrize("unsigned", [False, True])
def test_sites_of_a_quantised_network(unsigned: bool) -> None:
    check(sites(quantised_network(unsigned=unsigned)))


def test_dispatches_of_a_network() -> None:
    check(dispatches(PROGRAMS["network_nchw"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_sites_of_every_program(name: str) -> None:
    check(sites(PROGRAMS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_dispatches_of_every_program(name: str) -> None:
    check(dispatches(PROGRAMS[name]))
