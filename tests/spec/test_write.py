"""Specs through the compiler: what applies where, on every kind of dispatch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from iree.compiler import ir
from spec_programs import (
    DATA_TILING,
    KINDS,
    Kind,
    applied,
    bias_clamp,
    changed_configurations,
    code,
    configured,
    conv,
    default_entries,
    default_entry,
    elementwise,
    functions,
    indexed,
    matmul,
    name_of,
    new_context,
    normalisation,
    pack,
    pointwise_conv_bias,
    reduction,
    subtract,
)

from tilewright.errors import UserError
from tilewright.ir.template import compute_ops
from tilewright.spec.write import SpecEntry, write_spec


def other_entry(kind: Kind, function: ir.Operation, name: str = "other") -> SpecEntry:
    """The default entry of a dispatch, with the kind's other configuration on one op."""
    entry = default_entry(function, name)
    position = kind.op % len(compute_ops(function))
    configs = {(p, what): attribute for p, what, attribute in entry.attributes.ops}
    assert (position, "lowering_config") in configs
    configs[position, "lowering_config"] = ir.Attribute.parse(kind.other)
    return with_ops(entry, *((*key, configs[key]) for key in sorted(configs)))


def with_ops(entry: SpecEntry, *ops: tuple[int, str, ir.Attribute]) -> SpecEntry:
    """The entry with other attributes for its ops."""
    return dataclasses.replace(entry, attributes=dataclasses.replace(entry.attributes, ops=ops))


def spec_for(program: str, path: Path, flags: tuple[str, ...] = ()) -> str:
    """Write a spec with the default configuration of every dispatch; the spec's path."""
    with new_context():
        module = ir.Module.parse(configured(program, flags))
        path.write_text(write_spec(default_entries(module)))
    return str(path)


def spec_with_other(kind: Kind, path: Path) -> tuple[str, str]:
    """Write a spec with the kind's other configuration; its path, and the function it is for."""
    with new_context():
        module = ir.Module.parse(configured(kind.program, kind.flags))
        function = functions(module)[kind.dispatch]
        path.write_text(write_spec([other_entry(kind, function)]))
        return str(path), name_of(function)


@pytest.mark.parametrize("name", KINDS)
def test_the_default_configuration_applies_and_changes_nothing(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    spec = spec_for(kind.program, tmp_path / "own.mlir", kind.flags)
    before, after = configured(kind.program, kind.flags), configured(kind.program, kind.flags, spec)
    with new_context():
        module = ir.Module.parse(before)
        names = [name_of(f) for f in functions(module)]
    assert applied(before) == {}
    assert applied(after) == {name: name for name in names}
    assert changed_configurations(before, after) == []


@pytest.mark.parametrize("name", KINDS)
def test_another_configuration_applies_to_its_dispatch_only(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    spec, function = spec_with_other(kind, tmp_path / "other.mlir")
    before, after = configured(kind.program, kind.flags), configured(kind.program, kind.flags, spec)
    assert applied(after) == {function: "other"}
    (change,) = changed_configurations(before, after)
    assert (change.function, change.entry) == (function, "other")
    assert kind.other in change.after
    assert kind.other not in change.before


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_code_follows_the_spec(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    default = code(kind.program, kind.flags)
    own = spec_for(kind.program, tmp_path / "own.mlir", kind.flags)
    assert code(kind.program, kind.flags, own) == default
    other, _ = spec_with_other(kind, tmp_path / "other.mlir")
    tuned = code(kind.program, kind.flags, other)
    assert [tuned[name] == default[name] for name in default].count(False) == 1


@pytest.mark.slow
def test_one_spec_for_all_kinds_finds_each_dispatch_and_fails_nowhere(tmp_path: Path) -> None:
    """Every matcher meets every kind of dispatch; none may end in an error instead of a no."""
    path = tmp_path / "all.mlir"
    with new_context():
        modules, entries = [], []
        for name, kind in KINDS.items():
            if kind.dispatch == 0:
                modules.append(ir.Module.parse(configured(kind.program, kind.flags)))
                entries += default_entries(modules[-1], prefix=f"{name}/")
        path.write_text(write_spec(entries))
    for name, kind in KINDS.items():
        if kind.dispatch == 0:
            ids = applied(configured(kind.program, kind.flags, str(path)))
            assert ids, name
            assert all(entry == f"{name}/{function}" for function, entry in ids.items())


LOOKALIKES = {
    "another size": (matmul(), matmul(m=96)),
    "another reduction size": (matmul(), matmul(k=64)),
    "another layout": (matmul(n=64, m=64, k=64), matmul(n=64, m=64, k=64, maps="tb")),
    "another element type": (matmul(a="bf16"), matmul(a="f16")),
    "another accumulator type": (matmul(a="f16"), matmul(a="f16", c="f16")),
    "an epilogue": (matmul(), matmul(tail=bias_clamp())),
    "no epilogue": (matmul(tail=bias_clamp()), matmul()),
    "another epilogue": (matmul(tail=bias_clamp()), matmul(tail=bias_clamp(op="mulf"))),
    "another constant": (matmul(tail=bias_clamp("6.0")), matmul(tail=bias_clamp("3.0"))),
    "operands swapped": (matmul(tail=subtract(False)), matmul(tail=subtract(True))),
    "operands swapped back": (matmul(tail=subtract(True)), matmul(tail=subtract(False))),
    "another clamp": (elementwise("6.0"), elementwise("3.0")),
    "another scalar op": (
        elementwise(),
        elementwise(
            body="""%s = arith.subf %p, %q : f32
      %t = arith.maximumf %s, %zero : f32
      %u = arith.minimumf %t, %high : f32"""
        ),
    ),
    "scalar ops in another order": (
        elementwise(),
        elementwise(
            body="""%s = arith.addf %p, %q : f32
      %t = arith.minimumf %s, %high : f32
      %u = arith.maximumf %t, %zero : f32"""
        ),
    ),
    "more scalar ops": (
        elementwise(),
        elementwise(
            body="""%v = math.exp %p : f32
      %s = arith.addf %v, %q : f32
      %t = arith.maximumf %s, %zero : f32
      %u = arith.minimumf %t, %high : f32"""
        ),
    ),
    "one input twice": (
        elementwise(body="%u = arith.mulf %p, %q : f32"),
        elementwise(body="%u = arith.mulf %p, %p : f32"),
    ),
    "another index": (indexed(0), indexed(1)),
    "another reduction": (reduction(), reduction("maximumf")),
    "another initial value": (reduction(), reduction(initial="1.0")),
    "another epsilon": (normalisation(), normalisation("1.0e-3")),
    "another stride": (conv(), conv(stride=2)),
    "another dilation": (conv(), conv(dilation=2)),
    "another batch": (conv(1), conv(2)),
    "no batch": (conv(2), conv(1)),
    "another stride of a 1x1 filter": (pointwise_conv_bias(2), pointwise_conv_bias(1)),
    "padding": (pack(), pack(padded=True)),
    "no padding": (pack(padded=True), pack()),
}


_ONCE: dict[tuple[str, str], bool] = {}


def applies_once(program: str, text: str, spec: str) -> bool:
    """Whether a spec applies to one dispatch of a program; many lookalikes are of one program."""
    if (program, text) not in _ONCE:
        _ONCE[program, text] = len(applied(configured(program, spec=spec))) == 1
    return _ONCE[program, text]


@pytest.mark.parametrize("difference", LOOKALIKES)
def test_a_dispatch_that_only_looks_alike_is_left_alone(difference: str, tmp_path: Path) -> None:
    program, lookalike = LOOKALIKES[difference]
    spec = spec_for(program, tmp_path / "spec.mlir")
    assert applies_once(program, Path(spec).read_text(), spec)
    assert applied(configured(lookalike, spec=spec)) == {}


def test_the_same_work_is_recognised_at_another_place_of_another_program(tmp_path: Path) -> None:
    spec = spec_for(matmul(), tmp_path / "spec.mlir")
    two = """
func.func @other(%a: tensor<64x32xf32>, %b: tensor<32x48xf32>, %c: tensor<48x32xf32>)
    -> tensor<64x32xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x48xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<64x48xf32>) -> tensor<64x48xf32>
  %r = linalg.matmul ins(%a, %b : tensor<64x32xf32>, tensor<32x48xf32>)
      outs(%f : tensor<64x48xf32>) -> tensor<64x48xf32>
  %e2 = tensor.empty() : tensor<64x32xf32>
  %f2 = linalg.fill ins(%zero : f32) outs(%e2 : tensor<64x32xf32>) -> tensor<64x32xf32>
  %s = linalg.matmul ins(%r, %c : tensor<64x48xf32>, tensor<48x32xf32>)
      outs(%f2 : tensor<64x32xf32>) -> tensor<64x32xf32>
  return %s : tensor<64x32xf32>
}"""
    assert list(applied(configured(two, spec=spec))) == ["other_dispatch_0_matmul_64x48x32_f32"]


def test_data_tiling_does_not_carry_the_configuration_of_the_plain_matmul(tmp_path: Path) -> None:
    spec = spec_for(matmul(), tmp_path / "spec.mlir")
    assert applied(configured(matmul(), DATA_TILING, spec)) == {}


def test_where_two_entries_fit_the_first_applies(tmp_path: Path) -> None:
    kind = KINDS["matmul"]
    path = tmp_path / "two.mlir"
    before = configured(kind.program)
    with new_context():
        module = ir.Module.parse(before)
        function = functions(module)[0]
        entries = [default_entry(function, "first"), other_entry(kind, function, "second")]
        path.write_text(write_spec(entries))
        after = configured(kind.program, spec=str(path))
        assert list(applied(after).values()) == ["first"]
        assert changed_configurations(before, after) == []
        path.write_text(write_spec(entries[::-1]))
    after = configured(kind.program, spec=str(path))
    assert list(applied(after).values()) == ["second"]
    assert len(changed_configurations(before, after)) == 1


def test_a_configuration_in_the_input_is_left_alone(tmp_path: Path) -> None:
    spec = spec_for(matmul(), tmp_path / "spec.mlir")
    kind = KINDS["matmul"]
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(kind.program)
        info = ir.Attribute.parse(
            f"#iree_codegen.compilation_info<lowering_config = {kind.other}, translation_info = "
            "<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
        )

        def configure(op: ir.Operation) -> ir.WalkResult:
            if op.name == "linalg.matmul":
                op.attributes["compilation_info"] = info
            return ir.WalkResult.ADVANCE

        module.operation.walk(configure)
        program = str(module)
    before, after = configured(program), configured(program, spec=spec)
    assert applied(after) == {}
    assert changed_configurations(before, after) == []
    assert kind.other in after


def test_no_entries_give_a_spec_that_compiles_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.mlir"
    path.write_text(write_spec([], header={"made by": "nobody"}))
    for kind in (KINDS["matmul"], KINDS["data_tiled_mmt4d"], KINDS["conv_n1"]):
        assert code(kind.program, kind.flags, str(path)) == code(kind.program, kind.flags)


def test_writing_leaves_the_function_as_it_was() -> None:
    with new_context():
        module = ir.Module.parse(configured(KINDS["matmul_bias_clamp"].program))
        before = str(module)
        write_spec(default_entries(module))
        assert str(module) == before


@pytest.mark.parametrize(
    ("positions", "message"),
    [((), "configures none of its ops"), ((7,), "has 2 compute ops"), ((-1,), "has 2 compute ops")],
)
def test_a_wrong_entry_is_named_in_the_error(positions: tuple[int, ...], message: str) -> None:
    with new_context():
        module = ir.Module.parse(configured(matmul()))
        empty = ir.Attribute.parse("#iree_cpu.lowering_config<>")
        configs = [(position, "lowering_config", empty) for position in positions]
        entry = with_ops(default_entry(functions(module)[0], "m"), *configs)
        with pytest.raises(UserError, match=message) as error:
            write_spec([entry])
    assert "\n" not in str(error.value)
    assert "'m'" in str(error.value)


def test_two_entries_of_one_name_are_an_error() -> None:
    with new_context():
        module = ir.Module.parse(configured(matmul()))
        entry = default_entry(functions(module)[0], "m")
        with pytest.raises(UserError, match="2 entries are named 'm'"):
            write_spec([entry, entry])


@pytest.mark.parametrize("name", ["matmul_bias_clamp", "conv_n1", "data_tiled_mmt4d"])
def test_the_spec_reads_as_it_did(name: str, request: pytest.FixtureRequest) -> None:
    kind = KINDS[name]
    with new_context():
        module = ir.Module.parse(configured(kind.program, kind.flags))
        entry = other_entry(kind, functions(module)[kind.dispatch], name)
        text = write_spec([entry], header={"target": "llvm-cpu znver4"})
    golden = Path(__file__).parent / "golden" / f"{name}.mlir"
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), "look at the difference; accept it with --update-golden"
