"""Dispatches on GPUs through the compiler: read, configured otherwise, compiled, proven. No test
needs a device."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from gpu_programs import attention, contraction, convolution, row_sum, to_smtlib
from iree.compiler import ir

from tilewright.device_code import workgroup_sizes
from tilewright.gpu import GpuTemplate
from tilewright.ir.candidate import make_candidate
from tilewright.ir.configuring import DispatchAttributes
from tilewright.ir.dispatches import find_dispatches, isolate
from tilewright.ir.gpu_constraints import EMIT_CONSTRAINTS, constraint_ops
from tilewright.ir.session import CONFIGURED_PHASE, ISOLATED_PHASE, CompilerSession
from tilewright.ir.splice import SplicedTemplate
from tilewright.ir.template import compute_ops, dispatch_functions, find_function, read_dispatch
from tilewright.ir.walk import string_attribute, walk
from tilewright.measure.jobs import WorkerState
from tilewright.space.generators import dispatch_space
from tilewright.target import parse_target
from tilewright.tuning.entries import ConfigurationEntry

CASES = {
    "matmul cuda:sm_80": contraction("f16", "f32", 64, 64, 64),
    "matmul cuda:sm_90": contraction("f16", "f32", 64, 64, 64),
    "matmul rocm:gfx942": contraction("f16", "f32", 256, 256, 64),
    "simt cuda:sm_86": contraction("f32", "f32", 64, 64, 32),
    "simt vulkan:ampere": contraction("f32", "f32", 64, 64, 32),
    "row_sum cuda:sm_89": row_sum(64, 512),
}
# Those whose candidates take long to compile.
FURTHER = {
    "attention rocm:gfx942": attention("f16"),
    "convolution cuda:sm_80": convolution("f16", "f32"),
}


@dataclass
class Configured:
    target: object
    source: str
    plain: CompilerSession
    text: bytes
    executable: str
    entry: str
    found: object
    space: object

    def function(self, module):
        return find_function(module, self.executable, self.entry)

    def compile(self, configuration):
        with self.plain.context:
            module = make_candidate(
                self.text, self.plain.context, self.executable, self.entry, configuration
            )
            return self.plain.compile(module.operation, compile_from=CONFIGURED_PHASE)


_MADE = {}


def configured(case):
    """A program as IREE configures it, with what its constraints say; one compile for each case."""
    if case not in _MADE:
        target = parse_target(case.rpartition(" ")[2])
        source = (CASES | FURTHER)[case]
        plain = CompilerSession(target.flags)
        if target.declaration:
            with plain.context:
                module = ir.Module.parse(source, plain.context)
                device = ir.Attribute.parse(target.declaration, plain.context)
                module.operation.attributes["hal.device.targets"] = ir.ArrayAttr.get([device])
                source = module.operation.get_asm()
        stated = CompilerSession(
            (*target.flags, "--iree-codegen-add-tuner-attributes", EMIT_CONSTRAINTS)
        )
        text = stated.compile(source, compile_to="executable-configurations")
        with plain.context:
            module = ir.Module.parse(text, plain.context)
            (name,) = dispatch_functions(module)
            executable, entry = name.split("/")
            found = read_dispatch(module, executable, entry)
        space = dispatch_space(found.template, found.workload, target)
        _MADE[case] = Configured(target, source, plain, text, executable, entry, found, space)
    return _MADE[case]


@pytest.mark.parametrize("case", CASES)
def test_candidates_compile_with_the_workgroup_that_they_ask_for(case):
    one = configured(case)
    assert isinstance(one.found.template, GpuTemplate)
    assert one.space is not None
    drawn = one.space.space.sample(np.random.default_rng(0), 64)
    # One of each pipeline: a small one compiles fast.
    by_pipeline = {}
    for configuration in drawn:
        lowered = one.space.lower(configuration)
        known = by_pipeline.get(lowered.translation)
        if known is None or np.prod(lowered.workgroup_size) < np.prod(known.workgroup_size):
            by_pipeline[lowered.translation] = lowered
    for lowered in by_pipeline.values():
        sizes = workgroup_sizes(one.compile(lowered))
        size = tuple(lowered.workgroup_size)
        assert size in sizes or (int(np.prod(size)), 1, 1) in sizes


def test_the_default_is_compiled_as_the_compiler_does():
    one = configured("matmul cuda:sm_80")
    assert one.compile(None) == one.compile(one.space.lower(one.space.default))


def test_knobs_change_the_code():
    """Each of the knobs beside the constraints' own makes another program."""
    one = configured("matmul rocm:gfx942")
    member = one.space.members["TileAndFuse"]
    base = dict(member.space.default.items)
    made = {}
    for name, value in (
        ("reorder_workgroups", "none"),
        ("reorder_workgroups", "transpose"),
        ("reduce_bank_conflicts", not base["reduce_bank_conflicts"]),
    ):
        values = type(member.space.default).of({**base, name: value})
        made[name, value] = one.compile(member.configure(values))
    assert len(set(made.values())) == len(made)


def test_constraints_are_read_and_removed():
    one = configured("matmul cuda:sm_80")
    with one.plain.context:
        module = ir.Module.parse(one.text, one.plain.context)
        function = one.function(module)
        assert len(constraint_ops(function)) == len(one.found.template.programs) == 2
        assert "(assert" in to_smtlib(function, 0)
        made = make_candidate(one.text, one.plain.context, one.executable, one.entry, None)
        assert not constraint_ops(one.function(made))


def attributes(function):
    """What a dispatch is configured by, as text."""
    found = DispatchAttributes.read(function, compute_ops(function))
    return [str(found.translation_info), *((i, n, str(a)) for i, n, a in found.ops)]


@pytest.mark.parametrize("case", [*CASES, *FURTHER])
def test_a_candidate_has_what_a_spec_puts_on_its_dispatch(case, tmp_path):
    one = configured(case)
    drawn = map(one.space.lower, one.space.space.sample(np.random.default_rng(2), 8))
    lowered = next(found for found in drawn if found != one.found.template.default)
    path, spec = tmp_path / "configured.mlir", tmp_path / "spec.mlir"
    path.write_bytes(one.text)
    entry = ConfigurationEntry("other", path, one.executable, one.entry, lowered)
    flags = one.target.flags
    spec.write_text(ConfigurationEntry.write([entry], WorkerState(), flags, {}))
    # The flag for libraries of strategies is the process's own: it takes a compiler of its own.
    source = tmp_path / "source.mlir"
    source.write_text(one.source)
    tool = Path(sys.executable).parent / "iree-compile"
    flags = (*flags, f"{one.target.spec_flag}{spec}", f"--compile-to={CONFIGURED_PHASE}")
    done = subprocess.run([tool, source, *flags], capture_output=True, check=True)
    with one.plain.context as context:
        default, shipped = ir.Module.parse(one.text), ir.Module.parse(done.stdout)
        made = make_candidate(one.text, context, one.executable, one.entry, lowered)
        assert ConfigurationEntry.reached(shipped) == {"other": (one.entry,)}
        assert attributes(one.function(made)) == attributes(one.function(shipped))
        assert attributes(one.function(made)) != attributes(one.function(default))


def test_the_key_does_not_depend_on_the_configuration():
    one = configured("matmul cuda:sm_80")
    lowered = one.space.lower(one.space.space.sample(np.random.default_rng(2), 1)[0])
    with one.plain.context:
        made = make_candidate(one.text, one.plain.context, one.executable, one.entry, lowered)
        again = read_dispatch(made, one.executable, one.entry)
    assert again.workload.key == one.found.workload.key


@pytest.mark.slow
def test_attention_by_the_compilers_decomposition():
    one = configured("attention rocm:gfx942")
    for configuration in one.space.space.sample(np.random.default_rng(0), 4):
        assert workgroup_sizes(one.compile(one.space.lower(configuration)))


def codes_and_counts(module):
    """The binaries in a program at the `vm` phase, and the operands of its dispatches' counts."""
    codes, counts = [], []
    for op in walk(module.operation):
        if op.name == "vm.rodata" and "mime_type" in op.attributes:
            if string_attribute(op, "mime_type") == "application/x-flatbuffers":
                codes.append(bytes(np.array(op.attributes["value"]).astype(np.uint8)))
        elif op.name == "vm.call.variadic" and "dispatch" in str(op.attributes["callee"]):
            values = [v.owner.operation.attributes for v in list(op.operands)[3:6]]
            counts.append([str(v["value"]) if "value" in v else "0" for v in values])
    return codes, counts


@pytest.mark.parametrize("case", ["matmul cuda:sm_80", "matmul rocm:gfx942", "simt vulkan:ampere"])
def test_a_spliced_candidate_has_the_code_of_the_whole(case):
    target = parse_target(case.rpartition(" ")[2])
    stated = CompilerSession(
        (*target.flags, "--iree-codegen-add-tuner-attributes", EMIT_CONSTRAINTS)
    )
    module = ir.Module.parse(stated.compile(CASES[case], compile_to="flow"), stated.context)
    site = find_dispatches(module)[-1]
    alone = isolate(stated, module, site).module.operation
    text = stated.compile(alone, ISOLATED_PHASE, "executable-configurations")
    c = configured(case)
    spliced = SplicedTemplate(c.plain, text, site.executable, site.entry, 6, rotations=3)
    for configuration in [None, *c.space.space.sample(np.random.default_rng(4), 2)]:
        lowered = configuration and c.space.lower(configuration)
        whole = make_candidate(
            text, c.plain.context, site.executable, site.entry, lowered, 6, rotations=3
        )
        c.plain.run(whole.operation, CONFIGURED_PHASE, "vm")
        made = spliced.host.with_code(*spliced.generate(lowered).compiled(c.plain))
        codes, counts = codes_and_counts(whole)
        assert codes_and_counts(made) == (codes, counts)
        assert len(codes) == 1
        assert len(counts) == 7
