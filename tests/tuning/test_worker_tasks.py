"""Candidates that become a program that is already there are not compiled to the end."""

import pytest

import dispatch_corpus as corpus
from tilewright.ir.session import CompileError
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerState
from tilewright.space.generators import dispatch_space
from tilewright.tuning.worker_tasks import CandidateRequest, compile_candidate

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-codegen-add-tuner-attributes",
)


@pytest.fixture
def request_for(tmp_path):
    """A function that makes the request for a candidate with this name."""
    d = corpus.last("matmul_nn_f32_f32")
    configured = tmp_path / "configured.mlir"
    configured.write_bytes(d.configured.encode() if isinstance(d.configured, str) else d.configured)

    def make(name, configuration, **options):
        return CandidateRequest(
            configured=configured,
            executable=d.executable,
            entry=d.entry,
            configuration=configuration,
            repeats=1,
            flags=FLAGS,
            vmfb=tmp_path / f"{name}.vmfb",
            splice=True,
            **options,
        )

    space = dispatch_space(d.template, d.workload, corpus.TARGET)
    return make, space.lower(space.default), tmp_path / "programs"


def test_the_second_of_two_equal_programs_is_only_named(request_for):
    make, configuration, programs = request_for
    state = WorkerState()
    session(state, FLAGS)
    first = make("first", configuration, programs=programs)
    second = make("second", configuration, programs=programs)
    apart = make("apart", configuration)
    digest = compile_candidate(state, first)
    assert first.vmfb.exists()
    assert compile_candidate(state, second) == digest
    assert not second.vmfb.exists()
    assert compile_candidate(state, apart) == digest
    assert apart.vmfb.read_bytes() == first.vmfb.read_bytes()


def test_what_does_not_compile_leaves_no_program_behind(request_for, monkeypatch):
    make, configuration, programs = request_for
    state = WorkerState()
    compiler = session(state, FLAGS)
    compile_candidate(state, make("warm", None))

    def fail(*args, **options):
        raise CompileError("no space left on device")

    monkeypatch.setattr(compiler, "compile", fail)
    with pytest.raises(CompileError):
        compile_candidate(state, make("first", configuration, programs=programs))
    monkeypatch.undo()
    again = make("again", configuration, programs=programs)
    compile_candidate(state, again)
    assert again.vmfb.exists()
