"""Walking over IR, and what a module says of its processor."""

import pytest
from iree.compiler import ir

import dispatch_corpus as corpus
from tilewright.ir.target_info import target_info
from tilewright.ir.walk import string_attribute, walk

NESTED = """
module {
  func.func @f(%c: i1) {
    scf.if %c { scf.if %c { scf.yield } scf.yield } else { scf.yield }
    return
  }
}
"""


@pytest.fixture
def module():
    with ir.Context() as context, ir.Location.unknown():
        context.load_all_available_dialects()
        yield ir.Module.parse(NESTED)


def test_operations_come_before_their_regions(module):
    assert [op.name for op in walk(module.operation)] == [
        "func.func",
        "scf.if",
        "scf.if",
        "scf.yield",
        "scf.yield",
        "scf.yield",
        "func.return",
    ]


def test_regions_can_be_left_out(module):
    found = walk(module.operation, enter=lambda op: op.name == "func.func")
    assert [op.name for op in found] == ["func.func", "scf.if", "func.return"]


def test_string_attributes(module):
    function = module.body.operations[0].operation
    assert string_attribute(function, "sym_name") == "f"
    assert string_attribute(function, "nothing") == ""


def test_the_processor_is_known_before_and_after_executables_are_made():
    program = corpus.CASES["matmul_nn_f32_f32"].source
    configured = corpus.last("matmul_nn_f32_f32")
    with configured.session.context:
        late = target_info(ir.Module.parse(configured.configured))
    assert target_info(corpus.flow_module(program)) == late
    assert late[0] == "znver4"
    assert "+avx512f" in late[1]
    assert late[2] == 64


def test_a_module_without_a_target(module):
    assert target_info(module) == ("", "", 16)
