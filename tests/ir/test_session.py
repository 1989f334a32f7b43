"""The compiler session: phases, inputs, diagnostics, and what errors leave behind."""

import pickle

import pytest

from tilewright.errors import UserError
from tilewright.ir.session import PHASES, CompileError, CompilerSession, set_global_options

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=generic",
)
ADD = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %r = arith.addf %a, %a : tensor<4xf32>
  return %r : tensor<4xf32>
}
"""
CONFIGURED = "executable-configurations"


@pytest.fixture(scope="module")
def session():
    return CompilerSession(FLAGS)


def test_text_bytecode_and_operations_give_the_same_program(session):
    bytecode = session.compile(ADD, None, CONFIGURED, "bytecode")
    operation = session.parse(bytecode)
    from_bytecode = session.compile(bytecode, CONFIGURED)
    assert session.compile(operation.clone(), CONFIGURED) == from_bytecode
    assert session.compile(operation.clone(), CONFIGURED) == from_bytecode
    assert operation.name == "builtin.module"


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_can_be_stopped_at(session, phase):
    text = session.compile(ADD, compile_to=phase)
    assert b"module" in text


def test_compiling_is_deterministic(session):
    assert session.compile(ADD) == session.compile(ADD) == CompilerSession(FLAGS).compile(ADD)


def test_what_is_not_verified_comes_out_the_same(session):
    assert session.compile(ADD, verify=False) == session.compile(ADD)
    with pytest.raises(CompileError, match="tensor<5xf32>"):
        session.compile(ADD.replace("-> tensor<4xf32>", "-> tensor<5xf32>"), verify=False)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("func.func @main() {\n  foo", "user.mlir:2:3: "),
        (ADD.replace("-> tensor<4xf32>", "-> tensor<5xf32>"), "user.mlir:4:3: "),
        (b"ML\xefRgarbage", "user.mlir"),
    ],
)
def test_errors_have_a_place_and_leave_the_session_usable(session, source, says):
    for action in (session.compile, session.parse):
        with pytest.raises(CompileError) as error:
            action(source, name="user.mlir")
        assert str(error.value).startswith(says)
        assert "\n" not in str(error.value)
        assert str(error.value) in error.value.log
    assert session.compile(ADD)


def test_the_linkers_own_error_is_told(capfd):
    x86 = "--iree-llvmcpu-target-triple=x86_64-unknown-unknown-eabi-elf"
    softmax = """
    func.func @main(%x: tensor<4x8xf16>) -> tensor<4x8xf16> {
      %out = tensor.empty() : tensor<4x8xf16>
      %r = linalg.softmax dimension(1) ins(%x : tensor<4x8xf16>) outs(%out : tensor<4x8xf16>)
           -> tensor<4x8xf16>
      return %r : tensor<4x8xf16>
    }"""
    with pytest.raises(
        CompileError, match=r"undefined symbol: fmaxf.*link-embedded=false"
    ) as error:
        CompilerSession((*FLAGS, x86)).compile(softmax)
    assert "failed to link" in error.value.log
    assert ">>> referenced by" in error.value.log


def test_compile_errors_travel_between_processes():
    error = pickle.loads(pickle.dumps(CompileError("first line", "all of it")))
    assert (str(error), error.log) == ("first line", "all of it")


def test_nothing_to_output_is_a_compile_error(session):
    with pytest.raises(CompileError):
        session.compile("")


def test_unknown_flags_and_phases(session):
    with pytest.raises(UserError, match="no-such-flag"):
        CompilerSession(["--no-such-flag"])
    with pytest.raises(ValueError, match="allowed: input"):
        session.compile(ADD, compile_to="nowhere")
    with pytest.raises(ValueError, match="not possible"):
        session.compile(ADD, output="text")
    with pytest.raises(ValueError, match="not possible"):
        session.compile(ADD, compile_to="hal", output="vmfb")


def test_global_options_are_set_once(monkeypatch):
    monkeypatch.setattr("tilewright.ir.session._global_options", ("--a",))
    set_global_options("--a")
    with pytest.raises(RuntimeError, match="already set"):
        set_global_options("--b")
