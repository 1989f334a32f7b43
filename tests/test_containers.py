"""The container file and the composite action: their commands are ours, their versions those of
pyproject.toml. Neither is built here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tilewright.cli.ci import check
from tilewright.cli.main import commands

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_container_has_a_python_that_is_supported_and_runs_the_command() -> None:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    (base,) = [line for line in lines if line.startswith("FROM ")]
    (version,) = re.findall(r"python:(3\.\d+)", base)
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    assert 'ENTRYPOINT ["tilewright"]' in lines
    assert "tilewright" in PROJECT["scripts"]
    extras = re.findall(r"/opt/tilewright\[(\w+)\]", "\n".join(lines))
    assert extras
    assert set(extras) <= set(PROJECT["optional-dependencies"])


def test_what_the_action_runs_is_a_command_with_these_options() -> None:
    text = (ROOT / "actions" / "check-result" / "action.yml").read_text()
    assert "tilewright ci check " in text
    assert "ci" in commands.list_commands(None)  # type: ignore[arg-type]
    ours = {name for parameter in check.params for name in parameter.opts}
    step = text.split("- id: check\n")[1]
    used = set(re.findall(r"(?<=[ (])--[a-z-]+", step))
    assert {"--tolerance", "--junit", "--program", "--against", "--compile-only"} == used
    assert used <= ours
    inputs = set(re.findall(r"\$\{\{ inputs\.([a-z-]+) \}\}", text))
    declared = text.split("\ninputs:\n")[1].split("\noutputs:\n")[0]
    assert inputs == set(re.findall(r"^  ([a-z-]+):$", declared, re.MULTILINE))
    (python,) = re.findall(r'default: "(3\.\d+)"', declared)
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
