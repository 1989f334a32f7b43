"""`tilewright ci check`: its exit status, its reports, and another version of IREE."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner

from tilewright.cli.main import commands
from tilewright.cli.tuning_options import arguments_again
from tilewright.errors import UserError
from tilewright.tuning.parse import parse_share
from tuned_samples import MATMUL_AND_CONVOLUTION, matmul, recorded_folder, write_halved_spec


def test_an_entry_that_no_longer_applies_is_named_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_halved_spec(MATMUL_AND_CONVOLUTION, tmp_path / "spec.mlir").read_text()
    folder = recorded_folder(tmp_path / "out", spec, program=matmul())
    step = tmp_path / "step.md"
    step.write_text("# before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    summary, junit = tmp_path / "check.md", tmp_path / "check.xml"
    arguments = ["ci", "check", str(folder), "--compile-only", f"--summary={summary}"]
    done = CliRunner().invoke(commands, [*arguments, f"--junit={junit}", "--json"])
    assert done.exit_code == 3
    (failed,) = [one for one in json.loads(done.stdout)["cases"] if one["status"] == "failed"]
    assert failed["kind"] == "entry"
    assert failed["name"] in ("halved_0", "halved_1")
    assert "no longer applies" in failed["message"]
    assert "1x18x18x16xf32" in failed["message"]
    text = summary.read_text()
    assert "## tilewright: out no longer holds (1 failure)" in text
    assert f"| ✗ | entry | {failed['name']} |" in text
    assert "not the one that the result was made of" in text
    assert step.read_text() == "# before\n" + text
    (failure,) = ElementTree.parse(junit).iter("failure")
    assert failure.attrib["message"] == failed["message"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "there is no such result folder"),
        ([".", "--tolerance", "110%"], "--tolerance: '110%' is no part of a whole"),
        ([".", "--junit", "no/such/x.xml"], "--junit: there is no directory"),
        ([".", "--against", "somewhere"], "--against: 'somewhere' is no version"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], told: str) -> None:
    done = CliRunner().invoke(commands, ["ci", "check", *arguments])
    assert done.exit_code == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_command_line_is_said_again() -> None:
    said: list[list[str]] = []

    @click.command()
    @click.argument("file")
    @click.option("--many", multiple=True)
    @click.option("--one")
    @click.option("--switch", is_flag=True)
    def sample(**given: object) -> None:
        said.append(arguments_again(click.get_current_context(), without=("one",)))

    group = click.Group("tilewright", commands={"sample": sample})
    given = ["sample", "--many", "a b", "--many=-x", "--one", "1", "--switch", "--", "-file"]
    CliRunner().invoke(group, given, prog_name="tilewright", catch_exceptions=False)
    assert said == [["sample", "--many=a b", "--many=-x", "--switch", "--", "-file"]]


def test_shares() -> None:
    assert parse_share("10%", "--tolerance") == parse_share("0.1", "--tolerance") == 0.1
    assert parse_share("0", "--tolerance") == 0.0
    for text in ("1", "-1%", "a", "100%"):
        with pytest.raises(UserError, match="--tolerance"):
            parse_share(text, "--tolerance")
