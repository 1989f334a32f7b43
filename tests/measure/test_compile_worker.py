"""Compiling in worker processes: results, errors, crashes of the compiler itself."""

import pytest
from measured_programs import ADD, CPU_FLAGS

from tilewright.errors import UserError
from tilewright.measure.compile_worker import (
    CompileRequest,
    compile_pool,
    compile_source,
    session,
)
from tilewright.measure.jobs import WorkerState
from tilewright.measure.pool import Job

# The compiler itself crashes on an op of no known dialect.
CRASHES_THE_COMPILER = """
func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {
  %b = "no.such_op"(%a) : (tensor<3xf32>) -> tensor<3xf32>
  return %b : tensor<3xf32>
}
"""


@pytest.fixture(scope="module")
def pool():
    with compile_pool(1, flags=(CPU_FLAGS,)) as pool:
        yield pool


def only(pool, request):
    return pool.run([Job(compile_source, request)])[0]


def test_compiles_to_memory_and_to_a_file(pool, compiler, tmp_path):
    expected = compiler.compile(ADD)
    assert only(pool, CompileRequest(ADD, CPU_FLAGS)).value == expected
    source = tmp_path / "add.mlir"
    source.write_text(ADD)
    target = tmp_path / "add.vmfb"
    result = only(pool, CompileRequest(source, CPU_FLAGS, destination=target))
    assert result.value == target
    assert target.stat().st_size > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["add.mlir", "add.vmfb"]


def test_phases_pass_through(pool):
    stop = "executable-configurations"
    half = only(pool, CompileRequest(ADD, CPU_FLAGS, None, stop, "bytecode")).value
    assert only(pool, CompileRequest(half, CPU_FLAGS, stop)).failure is None


def test_an_error_is_reported_with_its_place_and_the_worker_goes_on(pool, tmp_path):
    pids = pool.process_ids
    source = tmp_path / "wrong.mlir"
    source.write_text("func.func @main() { nonsense")
    failure = only(pool, CompileRequest(source, CPU_FLAGS)).failure
    assert failure.error_type == "CompileError"
    assert failure.message.startswith(f"{source}:1:21: ")
    assert pool.process_ids == pids
    assert only(pool, CompileRequest(ADD, CPU_FLAGS)).failure is None


def test_a_crash_of_the_compiler_is_a_result(pool):
    failure = only(pool, CompileRequest(CRASHES_THE_COMPILER, CPU_FLAGS)).failure
    assert failure.kind == "crashed"
    assert failure.signal is not None
    assert only(pool, CompileRequest(ADD, CPU_FLAGS)).failure is None


def test_flags_that_do_not_exist(pool):
    failure = only(pool, CompileRequest(ADD, ("--no-such-flag",))).failure
    assert failure.error_type == "UserError"
    assert "no-such-flag" in failure.message
    with (
        compile_pool(1, flags=(("--no-such-flag",),)) as other,
        pytest.raises(UserError, match="no-such-flag"),
    ):
        other.run([Job(compile_source, CompileRequest(ADD, CPU_FLAGS))])


def test_a_compile_beyond_the_memory_limit_is_a_result():
    with compile_pool(1, memory_limit=70 << 20) as pool:
        failure = only(pool, CompileRequest(ADD, CPU_FLAGS)).failure
        assert failure.kind == "crashed"


def test_sessions_are_kept_by_flags():
    state = WorkerState()
    first = session(state, CPU_FLAGS)
    assert session(state, CPU_FLAGS) is first
    assert session(state, (*CPU_FLAGS, "--iree-opt-level=O2")) is not first
