"""iree-compile as a process: whole outputs or none, failures as values, nothing left running."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import stat
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tilewright import toolchain
from tilewright.errors import UnknownNameError, UserError
from tilewright.toolchain import CompileJob, Toolchain, check_versions, versions

FLAGS = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
PROGRAM = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "a program.mlir"
    path.write_text(PROGRAM)
    return path


def fake_tool(folder: Path, body: str) -> Toolchain:
    """A toolchain whose compiler is a shell script; `$out` is the file after -o."""
    folder.mkdir()
    path = folder / "iree-compile"
    path.write_text(f'#!/bin/sh\nfor word in "$@"; do out="$word"; done\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Toolchain(folder)


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_file())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_compile_and_the_plain_command_line_make_the_same(program: Path) -> None:
    tools = Toolchain()
    output, again = program.with_name("out.vmfb"), program.with_name("again.vmfb")
    outcome = tools.compile(program, output, FLAGS, timeout_s=60)
    assert outcome.ok
    assert outcome.error == ""
    assert outcome.seconds > 0
    assert files(program.parent) == [program.name, "out.vmfb"]
    plain = tools.command_line(program, again, FLAGS)
    assert plain.startswith("iree-compile '")
    assert shlex.split(plain) == ["iree-compile", str(program), *FLAGS, "-o", str(again)]
    exact = tools.command_line(program, again, FLAGS, plain=False)
    assert shlex.split(exact)[0] == str(tools.iree_compile)
    subprocess.run(exact, shell=True, check=True)
    assert again.read_bytes() == output.read_bytes()
    assert any(f"{minor}." in tools.version() for minor in toolchain.IREE_VERSIONS)


def test_an_error_has_its_location_and_keeps_the_old_output(program: Path) -> None:
    program.write_text(PROGRAM.replace("%a, %a", "%a, %b"))
    output = program.with_name("out.vmfb")
    output.write_text("old")
    outcome = Toolchain().compile(program, output, FLAGS, timeout_s=60)
    assert not outcome.ok
    assert not outcome.timed_out
    assert outcome.crashed is None
    assert outcome.error.startswith(f"{program}:3:23: error: use of undeclared SSA value")
    assert outcome.error in outcome.log
    assert output.read_text() == "old"
    assert files(program.parent) == [program.name, "out.vmfb"]


def test_flags_and_places_that_do_not_exist(program: Path) -> None:
    tools = Toolchain()
    wrong_flag = tools.compile(program, program.with_name("o"), ("--no-such-flag",), timeout_s=60)
    assert "--no-such-flag" in wrong_flag.error
    nowhere = tools.compile(program, program.parent / "no" / "o", FLAGS, timeout_s=60)
    assert not nowhere.ok
    assert "No such file or directory" in nowhere.error


def test_extra_flags_are_used(program: Path) -> None:
    dumps = program.parent / "dumps"
    extra = (f"--iree-hal-dump-executable-sources-to={dumps}",)
    output = program.with_name("o")
    assert Toolchain().compile(program, output, FLAGS, timeout_s=60, extra=extra).ok
    assert files(dumps)


def test_a_hang_is_ended_with_all_its_children(program: Path) -> None:
    pids = program.with_name("pids")
    body = f'printf part > "$out"; sleep 100 & echo $! > {shlex.quote(str(pids))}; wait'
    tools = fake_tool(program.parent / "bin", body)
    outcome = tools.compile(program, program.with_name("o"), (), timeout_s=0.5)
    assert (outcome.ok, outcome.timed_out, outcome.crashed) == (False, True, None)
    assert "0.5 s" in outcome.error
    assert files(program.parent) == [program.name, "pids"]
    end = time.monotonic() + 60
    while is_alive(int(pids.read_text())):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_LOOK_S", 0.1)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no proc(5)")


@needs_proc
def test_one_that_waits_for_itself_is_run_again_without_threads(
    program: Path, impatient: None
) -> None:
    body = 'case "$*" in *--mlir-disable-threading*) echo made > "$out";; *) exec sleep 100;; esac'
    tools = fake_tool(program.parent / "bin", body)
    output = program.with_name("o")
    outcome = tools.compile(program, output, ("--some-flag",), timeout_s=50)
    assert outcome.ok
    assert output.read_text() == "made\n"


@needs_proc
def test_one_that_waits_for_itself_twice_failed(program: Path, impatient: None) -> None:
    tools = fake_tool(program.parent / "bin", "exec sleep 100")
    outcome = tools.compile(program, program.with_name("o"), (), timeout_s=50)
    assert (outcome.ok, outcome.timed_out, outcome.stood_still) == (False, True, True)
    assert "stands still" in outcome.error


@needs_proc
@pytest.mark.parametrize("body", ["sleep 2", "kill -STOP $$", "while :; do :; done"])
def test_one_that_waits_for_others_or_works_is_let_go_on(
    program: Path, impatient: None, body: str
) -> None:
    tools = fake_tool(program.parent / "bin", f"{body}; exit 7")
    outcome = tools.compile(program, program.with_name("o"), (), timeout_s=1.5)
    assert not outcome.stood_still


def test_what_it_works_is_told_beside_what_it_takes(program: Path, impatient: None) -> None:
    busy = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; echo > $out"
    outcome = fake_tool(program.parent / "bin", busy).compile(
        program, program.parent / "out", (), timeout_s=60
    )
    assert outcome.ok
    assert 0.0 < outcome.cpu_s < 2 * outcome.seconds
    idle = fake_tool(program.parent / "idle", "sleep 0.5; echo > $out").compile(
        program, program.parent / "out", (), timeout_s=60
    )
    assert idle.cpu_s < 0.5 * idle.seconds


def test_a_crash_is_a_value(program: Path) -> None:
    body = 'printf half > "$out"; echo "LLVM ERROR: out of registers"; kill -ABRT $$'
    tools = fake_tool(program.parent / "bin", body)
    outcome = tools.compile(program, program.with_name("o"), (), timeout_s=10)
    assert (outcome.ok, outcome.crashed) == (False, 6)
    assert outcome.error == "LLVM ERROR: out of registers"
    assert files(program.parent) == [program.name]
    silent = fake_tool(program.parent / "silent", "kill -SEGV $$")
    assert "SIGSEGV" in silent.compile(program, program.with_name("o"), (), timeout_s=10).error


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("exit 3", "exit status 3"),
        ("exit 0", "exit status 0"),
        (r"printf '\377\376: error: x\n'; exit 1", "error: x"),
        ("echo \"x: error: $(printf '%0900d' 1)\"; exit 1", "0…"),
    ],
)
def test_a_compiler_that_says_little(program: Path, body: str, error: str) -> None:
    tools = fake_tool(program.parent / "bin", body)
    outcome = tools.compile(program, program.with_name("o"), (), timeout_s=10)
    assert not outcome.ok
    assert error in outcome.error


def test_a_flood_of_output_is_cut(program: Path) -> None:
    body = 'echo "x: error: first"; head -c 8000000 /dev/zero; exit 1'
    tools = fake_tool(program.parent / "bin", body)
    outcome = tools.compile(program, program.with_name("o"), (), timeout_s=30)
    assert outcome.error == "x: error: first"
    assert len(outcome.log) <= 1 << 20


def test_many_threads_write_one_output_without_harm(program: Path) -> None:
    body = 'for i in 1 2 3 4 5 6 7 8; do printf "$$ " >> "$out"; sleep 0.01; done'
    tools = fake_tool(program.parent / "bin", body)
    output = program.with_name("o")
    with ThreadPoolExecutor(8) as threads:
        jobs = [threads.submit(tools.compile, program, output, (), timeout_s=30) for _ in range(8)]
        assert all(job.result().ok for job in jobs)
    assert len(set(output.read_text().split())) == 1
    assert files(program.parent) == [program.name, "o"]


def test_compile_many_keeps_the_order_and_goes_on_after_a_failure(program: Path) -> None:
    body = 'case "$2" in --fail) exit 1;; esac; sleep "${2#--}"; echo "$2" > "$out"'
    tools = fake_tool(program.parent / "bin", body)
    flags = ["--0.3", "--fail", "--0.1", "--0"]
    jobs = [
        CompileJob(program, program.with_name(f"o{i}"), (flag,), timeout_s=30)
        for i, flag in enumerate(flags)
    ]
    outcomes = tools.compile_many(jobs, 2)
    assert [o.ok for o in outcomes] == [True, False, True, True]
    assert program.with_name("o2").read_text() == "--0.1\n"
    assert tools.compile_many([], 1) == []
    with pytest.raises(ValueError, match="workers"):
        tools.compile_many(jobs, 0)


def test_stop_ends_what_runs(program: Path) -> None:
    tools = fake_tool(program.parent / "bin", "sleep 100")
    jobs = [CompileJob(program, program.with_name("o"), (), timeout_s=100)] * 2
    timer = threading.Timer(0.3, tools.stop)
    timer.start()
    outcomes = tools.compile_many(jobs, 2)
    assert [o.crashed for o in outcomes] == [9, 9]


def test_a_directory_without_tools(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "no"):
        with pytest.raises(UserError, match=r"has no iree-compile that can be run"):
            Toolchain(folder)
    (tmp_path / "iree-compile").write_text("not executable")
    if os.geteuid() != 0 or not os.access(tmp_path / "iree-compile", os.X_OK):
        with pytest.raises(UserError, match="iree-compile"):
            Toolchain(tmp_path)


def test_a_compiler_of_another_version_is_refused_with_both(tmp_path: Path) -> None:
    own = Toolchain().version()
    assert "3.13" in own
    other = fake_tool(tmp_path / "other", "echo IREE compiler version 2.1.0 @ abc")
    with pytest.raises(UserError) as refused:
        other.check_same("old.cfg: [Env] iree_bin")
    message = str(refused.value)
    assert message.startswith(f"old.cfg: [Env] iree_bin: {other.iree_compile} is IREE compiler ver")
    assert "version 2.1.0 @ abc" in message
    assert own in message
    with pytest.raises(UserError, match="no compiler that tells its version"):
        fake_tool(tmp_path / "silent", "exit 1").check_same("--iree-bin silent")
    fake_tool(tmp_path / "same", f"echo '{own}'").check_same("--iree-bin same")
    Toolchain().check_same("")


def test_the_installed_versions_are_right() -> None:
    check_versions()
    found = versions()
    assert set(found) == {
        "tilewright",
        "iree-base-compiler",
        "iree-base-runtime",
        "numpy",
        "python",
    }
    assert all(found.values())


@pytest.mark.parametrize("version", ["3.12.0", "3.130.0", "4.0", None])
def test_another_version_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    def installed(name: str) -> str:
        if name == "iree-base-runtime":
            if version is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return version
        return "3.13.0"

    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.raises(UserError) as info:
        check_versions()
    message = str(info.value)
    assert f"iree-base-runtime {version or 'not at all'}" in message
    assert "pip install 'iree-base-compiler~=3.13.0' 'iree-base-runtime~=3.13.0'" in message
    assert "\n" not in message


@pytest.mark.parametrize("minor", toolchain.IREE_VERSIONS)
def test_each_supported_version_is_taken(monkeypatch: pytest.MonkeyPatch, minor: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{minor}.1")
    check_versions()


def test_unknown_processor_lists_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'znver4'") as caught:
        Toolchain().check_processor("znver44")
    assert "x86-64-v3" in caught.value.allowed or "generic" in caught.value.allowed
    Toolchain().check_processor(caught.value.allowed[0])
