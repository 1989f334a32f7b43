"""Kernels and convolutions in one preprocessing spec, beside configurations in a tuning spec."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest
from iree.compiler import ir

from tilewright.argument import ArgumentType
from tilewright.errors import UserError
from tilewright.ir.session import CompilerSession
from tilewright.ir.template import dispatch_functions, read_dispatch
from tilewright.measure.jobs import WorkerFailure
from tilewright.site import KernelChoice, Site
from tilewright.sketch.generators import sketches
from tilewright.sketch.site_tasks import FindSitesRequest, find_sites
from tilewright.spec.preprocessing import PHASE, conv_sites
from tilewright.spec.write import write_spec
from tilewright.target import parse_target
from tilewright.tiling import Tiling
from tilewright.toolchain import CompileJob, CompileOutcome
from tilewright.trial import Configuration
from tilewright.tuning.apply import apply
from tilewright.tuning.emit import emit
from tilewright.tuning.entries import ConfigurationEntry, ConvolutionEntry, KernelEntry
from tilewright.tuning.extraction import extract
from tilewright.tuning.finalist_tasks import SiteFinalistRequest, compile_site_finalist
from tilewright.tuning.kernel_sites import ReadSiteRequest, find_kernel_sites, read_site
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.outputs import MANIFEST
from tilewright.tuning.proof import (
    NOT_REACHED,
    Claim,
    Proof,
    ProofFailure,
    ProofStage,
    SpecRequest,
    prove,
    prove_all,
    write_specs,
)
from tilewright.tuning.variants import DEFAULT_VARIANT, PREPROCESSING_FLAG
from tuned_samples import matmul, result_folder

EPSILON = "1.0e-5"


def program(epsilon: str = EPSILON, stride: int = 2) -> str:
    """Two dense layers of one shape, a scaling whose constant is `epsilon`, a convolution."""
    out = "1x4x4x8" if stride == 2 else "1x8x8x8"
    dense = """
      %{n}_p = linalg.matmul ins(%{x}, %w : tensor<16x32xf32>, tensor<32x32xf32>)
        outs(%f : tensor<16x32xf32>) -> tensor<16x32xf32>
      %{n} = linalg.generic {{indexing_maps = [#same, #row, #same],
          iterator_types = ["parallel", "parallel"]}}
        ins(%{n}_p, %b : tensor<16x32xf32>, tensor<32xf32>) outs(%e : tensor<16x32xf32>) {{
      ^bb0(%p: f32, %q: f32, %o: f32):
        %s = arith.addf %p, %q : f32
        %r = arith.maximumf %s, %zero : f32
        linalg.yield %r : f32
      }} -> tensor<16x32xf32>"""
    return f"""
    #same = affine_map<(i, j) -> (i, j)>
    #row = affine_map<(i, j) -> (j)>
    func.func @dense(%x: tensor<16x32xf32>) -> tensor<16x32xf32> {{
      %zero = arith.constant 0.0 : f32
      %w = util.unfoldable_constant dense<0.125> : tensor<32x32xf32>
      %b = util.unfoldable_constant dense<0.5> : tensor<32xf32>
      %e = tensor.empty() : tensor<16x32xf32>
      %f = linalg.fill ins(%zero : f32) outs(%e : tensor<16x32xf32>) -> tensor<16x32xf32>
      {dense.format(n="y", x="x")}
      {dense.format(n="z", x="y")}
      return %z : tensor<16x32xf32>
    }}
    func.func @scale(%x: tensor<16x32xf32>) -> tensor<16x32xf32> {{
      %c = arith.constant {epsilon} : f32
      %e = tensor.empty() : tensor<16x32xf32>
      %y = linalg.generic {{indexing_maps = [#same, #same],
          iterator_types = ["parallel", "parallel"]}}
        ins(%x : tensor<16x32xf32>) outs(%e : tensor<16x32xf32>) {{
      ^bb0(%p: f32, %o: f32):
        %s = arith.addf %p, %c : f32
        %r = math.rsqrt %s : f32
        linalg.yield %r : f32
      }} -> tensor<16x32xf32>
      return %y : tensor<16x32xf32>
    }}
    func.func @conv(%x: tensor<1x8x8x8xf32>) -> tensor<{out}xf32> {{
      %zero = arith.constant 0.0 : f32
      %w = util.unfoldable_constant dense<0.125> : tensor<1x1x8x8xf32>
      %e = tensor.empty() : tensor<{out}xf32>
      %f = linalg.fill ins(%zero : f32) outs(%e : tensor<{out}xf32>) -> tensor<{out}xf32>
      %y = linalg.conv_2d_nhwc_hwcf {{dilations = dense<1> : vector<2xi64>,
        strides = dense<{stride}> : vector<2xi64>}}
        ins(%x, %w : tensor<1x8x8x8xf32>, tensor<1x1x8x8xf32>)
        outs(%f : tensor<{out}xf32>) -> tensor<{out}xf32>
      return %y : tensor<{out}xf32>
    }}"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenProgram]:
    path = tmp_path_factory.mktemp("kernels") / "program.mlir"
    path.write_text(program())
    with open_program(path, parse_target("cpu")) as found:
        yield found


@pytest.fixture(scope="module")
def kernels(
    opened: OpenProgram, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[KernelEntry, int]]:
    """The first kernel for each site, with how often the site is computed, by what it does."""
    folder = tmp_path_factory.mktemp("sites")
    request = FindSitesRequest(opened.program.path, opened.flags(), folder)
    found = {}
    for site in opened.compilers.ask(find_sites, request, 100.0):
        reading = ReadSiteRequest(site, opened.flags(), opened.target)
        expression = opened.compilers.ask(read_site, reading, 100.0).expression
        assert expression is not None
        sketch = sketches(expression, opened.target)[0]
        choice = KernelChoice(sketch.name, sketch.space.default)
        entry = KernelEntry(site.name, site.module, expression, choice, opened.target)
        found[site.name.rpartition("_dispatch_")[0]] = (entry, site.count)
    assert len(found) == 3
    return found


@pytest.fixture(scope="module")
def convolution(opened: OpenProgram) -> ConvolutionEntry:
    session = CompilerSession(list(opened.flags()))
    text = session.compile(program(), compile_to=PHASE)
    with session.context:
        (site,) = conv_sites(ir.Module.parse(text))
    return ConvolutionEntry(site)


Kernels = dict[str, tuple[KernelEntry, int]]


def claim(opened: OpenProgram, folder: Path, *entries: object, **fields: object) -> Claim:
    return Claim(opened.program.path, opened.flags(), folder / "proof", entries, **fields)


def test_each_kernel_is_dispatched_for_each_occurrence(
    opened: OpenProgram, kernels: Kernels, tmp_path: Path
) -> None:
    entries = [entry for entry, _ in kernels.values()]
    assert kernels["dense"][1] == 2
    proof = prove(opened, claim(opened, tmp_path, *entries))
    assert isinstance(proof, Proof)
    assert proof.missed(entries) == []
    for entry, count in kernels.values():
        assert len(proof.reached[entry.name]) == count
        assert len(set(proof.reached[entry.name])) == 1
    assert {change.entry for change in proof.changes} == {entry.name for entry in entries}
    assert b"tilewright" not in (tmp_path / "proof.before.mlir").read_bytes()
    assert len(list(tmp_path.glob("proof.*Entry.mlir"))) == 1


def test_a_program_with_nothing_but_kernels_is_compiled_once_to_be_proven(
    opened: OpenProgram, kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is known what the compiler makes of it without them."""
    entries = [entry for entry, _ in kernels.values()]
    known = extract(opened).configured
    empty, spec = tmp_path / "empty.mlir", tmp_path / "kernels.mlir"
    flags = opened.flags()
    requests = [SpecRequest((), empty, flags), SpecRequest(tuple(entries), spec, flags)]
    assert write_specs(opened, requests) == ["", ""]
    given = (f"{opened.target.spec_flag}{empty}", f"{PREPROCESSING_FLAG}={spec}")
    compiled: list[CompileJob] = []

    def counted(jobs: Sequence[CompileJob], workers: int) -> list[CompileOutcome]:
        compiled.extend(jobs)
        return type(opened.toolchain).compile_many(opened.toolchain, jobs, workers)

    monkeypatch.setattr(opened.toolchain, "compile_many", counted)
    proof = prove(opened, claim(opened, tmp_path, *entries, given=given, before=known))
    assert isinstance(proof, Proof)
    assert len(compiled) == 1
    assert proof.missed(entries) == []
    assert {change.entry for change in proof.changes} == {entry.name for entry in entries}
    # The same specs on what they have nothing to do with.
    other = tmp_path / "other.mlir"
    other.write_text(
        "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    )
    wrong = prove(opened, Claim(other, flags, tmp_path / "wrong", tuple(entries), given=given))
    assert wrong == ProofFailure(ProofStage.REACH, NOT_REACHED)


def test_what_takes_long_of_a_kernel_is_made_once_for_all_specs(
    opened: OpenProgram, kernels: Kernels, tmp_path: Path
) -> None:
    entries = []
    for entry, _ in kernels.values():
        site = tmp_path / entry.site.name
        site.write_bytes(entry.site.read_bytes())
        entries.append(replace(entry, site=site))

    def written(name: str, *chosen: KernelEntry) -> str:
        path = tmp_path / name
        assert write_specs(opened, [SpecRequest(chosen, path, opened.flags())]) == [""]
        return path.read_text()

    def kept() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.mlirbc")}

    whole = written("whole.mlir", *entries)
    made = kept()
    assert len(made) == 3
    assert written("again.mlir", *entries) == whole
    assert len(written("one.mlir", entries[0])) < len(whole)
    assert kept() == made
    knobs = Configuration.of({**dict(entries[0].choice.knobs.items), "unroll": 1})
    other = replace(entries[0], choice=replace(entries[0].choice, knobs=knobs))
    assert other.choice != entries[0].choice
    assert written("other.mlir", other, *entries[1:]) != whole
    assert len(kept()) == 4


def test_each_site_alone_takes_its_kernel(
    opened: OpenProgram, kernels: Kernels, tmp_path: Path
) -> None:
    claims = [
        Claim(entry.site, opened.flags(), tmp_path / name, (entry,))
        for name, (entry, _) in kernels.items()
    ]
    for (entry, _), proof in zip(kernels.values(), prove_all(opened, claims), strict=True):
        assert isinstance(proof, Proof), proof
        assert len(proof.reached[entry.name]) == 1


def test_a_finalist_is_its_site_through_its_spec_and_no_other(
    opened: OpenProgram, kernels: Kernels, tmp_path: Path
) -> None:
    (first, _), (second, _), *_ = kernels.values()

    def asked(entry: KernelEntry, site: Path) -> SiteFinalistRequest:
        return SiteFinalistRequest(entry, site, opened.flags(), tmp_path / "finalist.vmfb", 2)

    made = opened.run(compile_site_finalist, asked(first, first.site), 120.0)
    assert made.read_bytes()
    found = opened.compilers.ask(compile_site_finalist, asked(first, second.site), 120.0)
    assert isinstance(found, WorkerFailure)
    assert found.message == NOT_REACHED


def test_a_finalist_is_of_the_site_before_any_pass_can_rewrite_it(
    opened: OpenProgram, kernels: Kernels, tmp_path: Path
) -> None:
    """A bias that is spread out and then transposed: input passes make one broadcast of it."""
    module = tmp_path / "site.mlir"
    module.write_text("""
    #same = affine_map<(a, b, c, d) -> (a, b, c, d)>
    util.func public @main(%x: tensor<1x8x8x16xf32>, %b: tensor<16xf32>) -> tensor<1x8x8x16xf32> {
      %e = tensor.empty() : tensor<1x16x8x8xf32>
      %spread = linalg.broadcast ins(%b : tensor<16xf32>) outs(%e : tensor<1x16x8x8xf32>)
        dimensions = [0, 2, 3]
      %f = tensor.empty() : tensor<1x8x8x16xf32>
      %last = linalg.transpose ins(%spread : tensor<1x16x8x8xf32>)
        outs(%f : tensor<1x8x8x16xf32>) permutation = [0, 2, 3, 1]
      %y = linalg.generic {indexing_maps = [#same, #same, #same],
          iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
        ins(%x, %last : tensor<1x8x8x16xf32>, tensor<1x8x8x16xf32>)
        outs(%f : tensor<1x8x8x16xf32>) {
      ^bb0(%p: f32, %q: f32, %o: f32):
        %s = arith.addf %p, %q : f32
        linalg.yield %s : f32
      } -> tensor<1x8x8x16xf32>
      util.return %y : tensor<1x8x8x16xf32>
    }""")
    (known, _), *_ = kernels.values()
    image = ArgumentType((1, 8, 8, 16), "f32")
    inputs = (image, ArgumentType((16,), "f32"))
    site = Site("biased", ("biased",), 1, module, inputs, (False, True), image)
    reading = ReadSiteRequest(site, opened.flags(), opened.target)
    expression = opened.compilers.ask(read_site, reading, 100.0).expression
    assert expression is not None
    sketch = sketches(expression, opened.target)[0]
    choice = KernelChoice(sketch.name, sketch.space.default)
    entry = replace(known, name="biased", site=module, expression=expression, choice=choice)
    request = SiteFinalistRequest(entry, module, opened.flags(), tmp_path / "finalist.vmfb", 2)
    assert opened.run(compile_site_finalist, request, 120.0).read_bytes()


def test_another_constant_or_stride_is_another_site(
    opened: OpenProgram, kernels: Kernels, tmp_path: Path
) -> None:
    claims = []
    for name, text in {
        "scale": program(epsilon="1.0e-6"),
        "conv": program(stride=1),
    }.items():
        other = tmp_path / f"{name}.mlir"
        other.write_text(text)
        flags = opened.flags()
        claims.append(Claim(other, flags, tmp_path / name, (kernels[name][0],)))
        claims.append(Claim(other, flags, tmp_path / f"{name}2", (kernels["dense"][0],)))
    wrong, right, also_wrong, also_right = prove_all(opened, claims)
    for one in (wrong, also_wrong):
        assert isinstance(one, ProofFailure)
        assert one.stage is ProofStage.REACH
    for one in (right, also_right):
        assert isinstance(one, Proof)
        assert len(one.reached[kernels["dense"][0].name]) == 2


def test_kernels_and_convolutions_share_a_spec(
    opened: OpenProgram, kernels: Kernels, convolution: ConvolutionEntry, tmp_path: Path
) -> None:
    entries = (convolution, kernels["dense"][0])
    proof = prove(opened, claim(opened, tmp_path, *entries))
    assert isinstance(proof, Proof)
    assert proof.missed(entries) == []
    assert len(list(tmp_path.glob("proof.*Entry.mlir"))) == 1
    # As in a variant that comes with a spec of its own.
    own, flags = tmp_path / "own.mlir", opened.flags()
    assert write_specs(opened, [SpecRequest((convolution,), own, flags)]) == [""]
    variant = (*flags, f"{PREPROCESSING_FLAG}={own}")
    proof = prove(opened, Claim(opened.program.path, variant, tmp_path / "variant", (entries[1],)))
    assert isinstance(proof, Proof)
    assert len(proof.reached[entries[1].name]) == 2
    assert proof.reached[convolution.name]
    assert not any("dispatch_0_conv" in name for name in proof.dispatches)


def test_kernels_and_configurations_are_told_apart(
    opened: OpenProgram, kernels: Kernels, tmp_path: Path
) -> None:
    """Dispatches have other numbers in their names where kernels are in the place of some."""
    plain = prove(opened, claim(opened, tmp_path))
    assert isinstance(plain, Proof)
    configured, (entry, _) = plain.configured, kernels["dense"]
    with CompilerSession(list(opened.flags())).context:
        module = ir.Module.parse(configured.read_bytes())
        name = next(one for one in dispatch_functions(module) if "scale" in one)
        template = read_dispatch(module, *name.split("/")).template
        levels = dict(template.root_op.tiling.levels)
        levels["distribution"] = tuple(-(-size // 2) for size in levels["distribution"])
        info = template.configure(Tiling.of(levels), template.translation)
    tiles = ConfigurationEntry("half", configured, *name.split("/"), info)
    (tmp_path / "both").mkdir()
    proof = prove(opened, claim(opened, tmp_path / "both", tiles, entry))
    assert isinstance(proof, Proof)
    assert proof.reached == {"half": (name.split("/")[1],), entry.name: (ANY, ANY)}
    assert [change.entry for change in proof.changes] == ["half", entry.name]


def test_a_kernel_that_is_not_of_its_site_is_refused(
    opened: OpenProgram, kernels: Kernels, tmp_path: Path
) -> None:
    dense, scale = kernels["dense"][0], kernels["scale"][0]
    wrong = [
        replace(dense, site=scale.site),
        replace(dense, expression=scale.expression),
        replace(scale, choice=KernelChoice("no-such-sketch", scale.choice.knobs)),
    ]
    requests = [
        SpecRequest((one,), tmp_path / f"{number}.mlir", opened.flags())
        for number, one in enumerate(wrong)
    ]
    told = write_specs(opened, requests)
    assert "takes 3 inputs, its site 1" in told[0]
    assert "is not for this site" in told[1]
    assert "no-such-sketch" in told[2]
    twice = [SpecRequest((dense, replace(dense, name="again")), tmp_path / "t", opened.flags())]
    assert "are for one site" in write_specs(opened, twice)[0]


# -- applied ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spec(opened: OpenProgram, kernels: Kernels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "kernels.mlir"
    entries = tuple(kernels[name][0] for name in ("dense", "scale"))
    header = (("target", opened.target.key), ("variant", "default"))
    assert write_specs(opened, [SpecRequest(entries, path, opened.flags(), header)]) == [""]
    return path


def test_a_spec_of_kernels_is_applied(opened: OpenProgram, spec: Path, tmp_path: Path) -> None:
    done = apply(opened.program.source, spec, tmp_path / "p.vmfb")
    assert (tmp_path / "p.vmfb").stat().st_size > 1000
    assert len(done.entries) == 2
    assert {change.entry for change in done.changes} == set(done.entries)
    assert all(change.after == "a kernel of tilewright" for change in done.changes)
    assert done.unused == done.notes == ()
    assert f"{PREPROCESSING_FLAG}={spec}" in done.command
    other = tmp_path / "other.mlir"
    other.write_text(program(epsilon="1.0e-6"))
    assert len(apply(other, spec).unused) == 1
    other.write_text(matmul())
    with pytest.raises(UserError, match="the spec changes no dispatch"):
        apply(other, spec)


def test_a_result_folder_brings_its_kernels_along(
    opened: OpenProgram, spec: Path, tmp_path: Path
) -> None:
    folder = result_folder(tmp_path / "out", write_spec([]))
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["variant_flags"] = [f"{PREPROCESSING_FLAG}={spec}"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    done = apply(opened.program.source, folder, tmp_path / "p.vmfb")
    assert len(done.entries) == len(done.changes) == 2
    assert done.command.count(PREPROCESSING_FLAG) == 1
    with pytest.raises(UserError, match="no configuration of"):
        emit(opened.program.source, folder, tmp_path / "emitted.mlir")


# -- importers -------------------------------------------------------------------------------------

ONNX = """
func.func @net(%a: !torch.vtensor<[4,16],f32>, %w: !torch.vtensor<[16,32],f32>,
               %b: !torch.vtensor<[32],f32>) -> !torch.vtensor<[4,32],f32>
    attributes {torch.onnx_meta.ir_version = 8 : si64, torch.onnx_meta.opset_version = 17 : si64} {
  %0 = torch.operator "onnx.Gemm"(%a, %w, %b) : (!torch.vtensor<[4,16],f32>,
    !torch.vtensor<[16,32],f32>, !torch.vtensor<[32],f32>) -> !torch.vtensor<[4,32],f32>
  %1 = torch.operator "onnx.Relu"(%0) : (!torch.vtensor<[4,32],f32>) -> !torch.vtensor<[4,32],f32>
  %2 = torch.operator "onnx.Softmax"(%1) {torch.onnx.axis = -1 : si64}
    : (!torch.vtensor<[4,32],f32>) -> !torch.vtensor<[4,32],f32>
  return %2 : !torch.vtensor<[4,32],f32>
}
"""


def test_onnx_models_take_kernels(tmp_path: Path) -> None:
    """Their softmax computes a maximum and where it is by one op, and their functions are two."""
    path = tmp_path / "net.mlir"
    path.write_text(ONNX)
    with open_program(path, parse_target("cpu"), input_type="onnx") as opened:
        entries = []
        for facts in find_kernel_sites(opened, DEFAULT_VARIANT):
            assert facts.tunable is not None, facts.reason
            sketch = next(iter(facts.tunable.sketches.values()))
            choice = KernelChoice(sketch.name, sketch.space.default)
            site, expression = facts.site.module, facts.tunable.expression
            entries.append(KernelEntry(facts.site.name, site, expression, choice, opened.target))
        proof = prove(opened, claim(opened, tmp_path, *entries))
    assert isinstance(proof, Proof)
    assert len(entries) == 2
    assert proof.missed(entries) == []
    assert all(name.startswith("tilewright_") for name in proof.dispatches)
