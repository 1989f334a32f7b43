"""Whether a result still holds: entries by name, outputs, speed; what is recorded of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tilewright.errors import UserError
from tilewright.measure.comparison import Finalist
from tilewright.measure.measurement_key import measurement_key
from tilewright.measure.statistics import Interval, Measurement, Verdict
from tilewright.report.check_result import junit, markdown
from tilewright.target import parse_target
from tilewright.toolchain import installed_version
from tilewright.tuning.check_result import CaseStatus, ResultCheck, check_result
from tilewright.tuning.programs import Programs
from tilewright.tuning.recorded import read_recorded
from tuned_samples import MATMUL_AND_CONVOLUTION, matmul, recorded_folder, write_halved_spec


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("spec") / "spec.mlir"
    return write_halved_spec(MATMUL_AND_CONVOLUTION, path).read_text()


def status(check: ResultCheck, kind: str) -> dict[str, CaseStatus]:
    return {one.name: one.status for one in check.cases if one.kind == kind}


def test_every_entry_is_looked_at_and_a_report_says_so(tmp_path: Path, spec: str) -> None:
    check = check_result(recorded_folder(tmp_path / "out", spec), compile_only=True)
    assert check.ok
    assert status(check, "entry") == {"halved_0": "passed", "halved_1": "passed"}
    assert check.speedup is None
    assert check.made_with == check.checked_with == installed_version("iree-base-compiler")
    assert "llvm-cpu/pentium/8B/1t, here llvm-cpu/" in check.other_machine
    text = markdown(check)
    assert "out holds" in text
    assert "| ✓ | entry | halved_0 | applies to 1 place" in text
    suite = ElementTree.fromstring(junit(check))
    assert suite.attrib["tests"] == str(len(check.cases)) == "4"
    assert suite.attrib["failures"] == "0"
    assert {case.attrib["classname"] for case in suite.iter("testcase")} == {
        "out.program",
        "out.entry",
    }


def test_what_never_applied_is_no_failure(tmp_path: Path, spec: str) -> None:
    folder = recorded_folder(tmp_path / "out", spec, program=matmul(), entries=())
    check = check_result(folder, compile_only=True)
    assert check.ok
    assert sorted(status(check, "entry").values()) == ["passed", "skipped"]


def test_a_program_is_run_and_compared(tmp_path: Path, spec: str) -> None:
    folder = recorded_folder(tmp_path / "out", spec, speedup=1000.0)
    check = check_result(folder)
    assert status(check, "numbers") == {"outputs": "passed"}
    assert check.speedup is not None
    assert check.default_ms is not None
    assert check.default_ms > 0
    # The recorded ratio is another machine's.
    assert status(check, "speed")["against the recorded ratio"] == "skipped"
    key = read_recorded(folder).manifest["target"]
    assert key != check.target_key
    now = measurement_key(parse_target("cpu", 1))
    again = recorded_folder(
        tmp_path / "here",
        spec,
        speedup=1000.0,
        target=check.target_key,
        # Another compiler is what a check is for.
        measured_on=replace(now, compiler="3.11.0").to_json(),
    )
    check = check_result(again)
    assert check.other_machine == ""
    assert status(check, "speed")["against the recorded ratio"] == "failed"
    assert "1000.00x was recorded, with a tolerance of 10" in check.failed[-1].message
    assert "| now, IREE" in markdown(check)


ADDED = """func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %y = arith.addf %x, %x : tensor<64xf32>
  return %y : tensor<64xf32>
}"""


@pytest.mark.parametrize(
    ("program", "found"), [(ADDED, "passed"), (MATMUL_AND_CONVOLUTION, "failed")]
)
def test_only_a_program_that_was_changed_can_be_slower(
    tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch, program: str, found: str
) -> None:
    slower = Finalist(Measurement((1.0,) * 7), Interval(1.003, 1.001, 1.005, 0.95), Verdict.SAME)
    monkeypatch.setattr(Programs, "compare", lambda *_, **__: [slower, slower])
    check = check_result(recorded_folder(tmp_path / "out", spec, program=program, entries=()))
    assert status(check, "speed")["against the default"] == found


def test_what_does_not_compile_any_more_is_a_finding(tmp_path: Path, spec: str) -> None:
    folder = recorded_folder(tmp_path / "bad", "module {", entries=())
    (failed,) = check_result(folder, compile_only=True).failed
    assert failed.name == "the specs of bad"
    assert "not a valid MLIR module" in failed.message
    folder = recorded_folder(tmp_path / "program", spec, program="func.func @main(")
    (failed,) = check_result(folder, compile_only=True).failed
    assert failed.kind == "program"


def test_a_variant_that_changes_nothing_is_a_finding(tmp_path: Path, spec: str) -> None:
    silent = recorded_folder(
        tmp_path / "silent",
        spec,
        entries=(),
        variant="mine",
        variant_flags=["--iree-opt-aggressively-propagate-transposes"],
    )
    check = check_result(silent, compile_only=True)
    assert status(check, "variant") == {"mine": "failed"}
    tiled = recorded_folder(
        tmp_path / "tiled",
        spec,
        program=matmul(),
        entries=(),
        variant="data-tiling",
        variant_flags=["--iree-opt-data-tiling"],
    )
    assert status(check_result(tiled, compile_only=True), "variant") == {"data-tiling": "passed"}


def test_what_is_recorded_is_found_where_it_lies_now(tmp_path: Path, spec: str) -> None:
    folder = recorded_folder(tmp_path / "out", spec)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["program"]["runtime_parameters"] = ["--parameters=model=/nowhere/weights.irpa"]
    flag = "--iree-preprocessing-transform-spec-filename"
    manifest["variant_flags"] = [f"{flag}=/nowhere/p.mlir"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "weights.irpa").write_bytes(b"")
    (folder / "preprocessing_spec.mlir").write_text("module {}")
    found = read_recorded(folder)
    assert found.program == tmp_path / "program.mlir"
    assert [str(one) for one in found.options.parameters] == [f"model={folder}/weights.irpa"]
    assert found.tuned.variant.flags == (f"{flag}={folder.absolute()}/preprocessing_spec.mlir",)
    (tmp_path / "program.mlir").unlink()
    with pytest.raises(UserError, match=r"program\.mlir is not there.*--program FILE"):
        read_recorded(folder)
    (folder / "summary.json").write_text("{}")
    with pytest.raises(UserError, match="tune the program again"):
        read_recorded(folder)
