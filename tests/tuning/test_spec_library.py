"""Libraries of specs: pushed, pulled over HTTP, looked up by operator and machine."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilewright.cli.main import commands
from tilewright.errors import UserError
from tilewright.measure.measurement_key import MeasurementKey
from tilewright.spec.evidence import EntryEvidence
from tilewright.spec.report import SpecReport
from tilewright.tuning.spec_library import (
    FAMILY,
    INDEX,
    OTHER,
    SKU,
    LibraryFit,
    fit,
    gain,
    open_library,
    pull,
    push,
)

HERE = MeasurementKey("EPYC 1", threads=2, caches=("L2 512 KiB",), compiler="3.13.0 abc")
EVIDENCE = EntryEvidence(
    operator="abc",
    workload="contraction 4x4x4 f32",
    configuration='{"rows": 4}',
    variant="default",
    target="llvm-cpu/znver3/32B/2t",
    measured_on=json.dumps(HERE.to_json()),
    compiler="3.13.0",
    tilewright="0.1.0",
    default_ms="2",
    tuned_ms="1",
    low="1.9",
    high="2.1",
    verified="float64 NumPy",
    date="2026-11-22",
)


def report(*entries: EntryEvidence) -> SpecReport:
    known = {f"entry_{number}": one for number, one in enumerate(entries)}
    return SpecReport((), True, {}, evidence=known)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    faster = replace(EVIDENCE, measured_on="", tuned_ms="0.5")
    wider = replace(EVIDENCE, target="llvm-cpu/znver4/64B/2t")
    given = [(b"one", report(EVIDENCE, wider), "p"), (b"two", report(faster), "")]
    assert len(push(folder, given)) == 2
    return folder


@pytest.fixture
def served(library: Path) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(library))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_this_processor_comes_before_its_family_and_nothing_else_fits(library: Path) -> None:
    found = open_library(str(library))
    target = EVIDENCE.target
    assert [one.fit.how for one in found.find("abc", target, HERE)] == [SKU]
    of_family = found.find("abc", "llvm-cpu/znver3/32B/8t", replace(HERE, threads=8))
    assert [(one.fit.how, gain(one.evidence)) for one in of_family] == [
        (FAMILY, 4.0),
        (FAMILY, 2.0),
    ]
    other = found.find("abc", "llvm-cpu/haswell/32B/2t", HERE)
    assert {one.fit.how for one in other} == {OTHER}
    assert found.find("another", target, HERE) == []
    assert [one.program for one in found.of_program("p")] == ["p"]


def test_what_differs_makes_an_entry_a_hint_and_is_told() -> None:
    target = EVIDENCE.target
    assert fit(EVIDENCE, target, HERE) == LibraryFit(SKU, "")
    other = replace(HERE, processor="EPYC 2", caches=(), compiler="3.12.0 def")
    why = "other processor, caches, compiler"
    assert fit(EVIDENCE, target, other) == LibraryFit(FAMILY, why)
    said = fit(replace(EVIDENCE, measured_on=""), target, HERE)
    assert said == LibraryFit(FAMILY, "the record does not say what it was measured on")
    assert fit(EVIDENCE, target, None).how == FAMILY
    gpu = replace(EVIDENCE, target="cuda/sm_80", measured_on='{"gpu": "A100"}')
    assert fit(gpu, "cuda/sm_80", MeasurementKey(gpu="A100")).how == SKU
    refused = fit(EVIDENCE, "cuda/sm_80", HERE)
    assert refused == LibraryFit(OTHER, "for llvm-cpu/znver3/32B, not cuda/sm_80")
    assert gpu.processor == "A100"
    assert EVIDENCE.processor == "EPYC 1"


def test_a_spec_is_pushed_once(library: Path) -> None:
    assert push(library, [(b"two", report(EVIDENCE), "q")]) == []
    assert [one.program for one in open_library(str(library)).specs] in (["p", "q"], ["q", "p"])
    with pytest.raises(UserError, match="says nothing of what its entries are for"):
        push(library, [(b"three", report(), "")])


def test_a_library_is_pulled_from_a_web_server_and_digests_are_checked(
    library: Path, served: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    assert len(pull(open_library(served), copy)) == 2
    assert pull(open_library(served), copy) == []
    for spec in open_library(str(copy)).specs:
        assert (copy / spec.file).read_bytes() in (b"one", b"two")
    next((library / "specs").iterdir()).write_bytes(b"something else")
    with pytest.raises(UserError, match=r"is not what index\.json says it is"):
        pull(open_library(served), tmp_path / "other")
    with pytest.raises(UserError, match="cannot get it"):
        open_library(f"{served}nowhere")


def test_what_is_no_library_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no library of specs.*`tilewright specs push` makes one"):
        open_library(str(tmp_path))
    index = tmp_path / INDEX
    index.write_text("[]")
    with pytest.raises(UserError, match="is no index of specs"):
        open_library(str(tmp_path))
    index.write_text('{"format": 2, "specs": []}')
    with pytest.raises(UserError, match="has format 2"):
        open_library(str(tmp_path))
    spec = {"sha256": "", "preprocessing": False, "program": "", "entries": {}}
    for file in ("../../etc/passwd", "/etc/passwd", "file:///etc/passwd"):
        index.write_text(json.dumps({"format": 1, "specs": [{"file": file, **spec}]}))
        with pytest.raises(UserError, match="is not in the library"):
            open_library(str(tmp_path))


def test_the_own_library_is_one_and_can_be_shown(tmp_path: Path) -> None:
    own = open_library("own")
    assert own.specs
    for spec in own.specs:
        assert own.read(spec)
        # Nothing is in it that was not judged, or whose machine nobody knows.
        assert all(one.operator and one.knobs() for one in spec.entries.values())
        assert all(one.machine and float(one.low) > 1.0 for one in spec.entries.values())
    done = CliRunner().invoke(commands, ["spec", "library", "own", "--json"])
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["target"].startswith("llvm-cpu/")
    assert "/host/" not in told["target"]
    assert told["machine"]["processor"]
    assert {one["fits"] for one in told["entries"]} <= {SKU, FAMILY, ""}


def test_pushing_to_a_url_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(commands, ["specs", "push", "https://example.org", str(tmp_path)])
    assert done.exit_code == 2
    assert "a URL is only read" in done.stderr
