"""Proofs through the compiler: what a spec reached, and every way in which there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from iree.compiler import ir

from tilewright.ir.session import CONFIGURED_PHASE, CompilerSession
from tilewright.ir.template import dispatch_functions, read_dispatch
from tilewright.spec.preprocessing import PHASE, conv_sites
from tilewright.target import SPEC_FLAG, parse_target
from tilewright.tiling import Tiling
from tilewright.toolchain import Toolchain
from tilewright.tuning.entries import ConfigurationEntry, ConvolutionEntry
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.proof import (
    Claim,
    Proof,
    ProofFailure,
    ProofStage,
    SpecRequest,
    prove,
    prove_all,
    write_specs,
)
from tuned_samples import MATMUL_AND_CONVOLUTION, matmul, write_halved_spec

TUNER_FLAG = "--iree-codegen-add-tuner-attributes"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenProgram]:
    program = tmp_path_factory.mktemp("proof") / "both.mlir"
    program.write_text(MATMUL_AND_CONVOLUTION)
    with open_program(program, parse_target("cpu")) as found:
        yield found


def halved(opened: OpenProgram, program: str, folder: Path) -> list[ConfigurationEntry]:
    """An entry for each dispatch of a program: half of the compiler's distribution tiles."""
    session = CompilerSession([*opened.flags(), TUNER_FLAG])
    configured = folder / "configured.mlir"
    configured.write_bytes(session.compile(program, compile_to=CONFIGURED_PHASE))
    entries = []
    with session.context:
        module = ir.Module.parse(configured.read_bytes())
        for name in dispatch_functions(module):
            executable, entry = name.split("/")
            template = read_dispatch(module, executable, entry).template
            levels = dict(template.root_op.tiling.levels)
            levels["distribution"] = tuple(-(-s // 2) for s in levels["distribution"])
            info = template.configure(Tiling.of(levels), template.translation)
            entries.append(ConfigurationEntry(f"half {entry}", configured, executable, entry, info))
    return entries


@pytest.fixture(scope="module")
def entries(
    opened: OpenProgram, tmp_path_factory: pytest.TempPathFactory
) -> list[ConfigurationEntry]:
    folder = tmp_path_factory.mktemp("entries")
    return halved(opened, MATMUL_AND_CONVOLUTION, folder)


@pytest.fixture(scope="module")
def sites(opened: OpenProgram) -> list[ConvolutionEntry]:
    session = CompilerSession(list(opened.flags()))
    text = session.compile(MATMUL_AND_CONVOLUTION, compile_to=PHASE)
    with session.context:
        return [ConvolutionEntry(site) for site in conv_sites(ir.Module.parse(text))]


def claim(opened: OpenProgram, folder: Path, *entries: object, **fields: object) -> Claim:
    return Claim(opened.program.path, opened.flags(), folder / "proof", entries, **fields)


def test_each_entry_reaches_its_dispatch(
    opened: OpenProgram, entries: list[ConfigurationEntry], tmp_path: Path
) -> None:
    proof = prove(opened, claim(opened, tmp_path, *entries))
    assert isinstance(proof, Proof)
    assert proof.missed(entries) == []
    assert proof.reached == {entry.name: (entry.entry,) for entry in entries}
    assert [change.entry for change in proof.changes] == [entry.name for entry in entries]
    assert all(change.before != change.after for change in proof.changes)
    assert set(proof.dispatches) == {entry.entry for entry in entries}
    assert b"tilewright.tuned" in proof.configured.read_bytes()


def test_what_an_entry_leaves_as_it_is_is_told_and_not_reached(
    opened: OpenProgram, tmp_path: Path
) -> None:
    session = CompilerSession([*opened.flags(), TUNER_FLAG])
    configured = tmp_path / "configured.mlir"
    configured.write_bytes(session.compile(MATMUL_AND_CONVOLUTION, compile_to=CONFIGURED_PHASE))
    with session.context:
        module = ir.Module.parse(configured.read_bytes())
        executable, entry = next(iter(dispatch_functions(module))).split("/")
        own = read_dispatch(module, executable, entry).template.default
    entry = ConfigurationEntry("own", configured, executable, entry, own)
    spec = tmp_path / "own.mlir"
    assert write_specs(opened, [SpecRequest((entry,), spec, opened.flags())]) == [""]
    proof = prove(opened, claim(opened, tmp_path, given=(f"{SPEC_FLAG}{spec}",)))
    assert isinstance(proof, Proof)
    (change,) = proof.changes
    assert (change.entry, change.before) == ("own", change.after)
    assert proof.missed([entry]) == ["own"]


def test_a_spec_that_matches_nothing_is_a_failure(opened: OpenProgram, tmp_path: Path) -> None:
    other = halved(opened, matmul(48, 80, 112), tmp_path)
    found = prove(opened, claim(opened, tmp_path, *other))
    assert isinstance(found, ProofFailure)
    assert found.stage is ProofStage.REACH
    assert "did not apply" in found.message


def test_convolutions_are_entries_of_another_kind(
    opened: OpenProgram, sites: list[ConvolutionEntry], tmp_path: Path
) -> None:
    assert len(sites) == 1
    proof = prove(opened, claim(opened, tmp_path, *sites))
    assert isinstance(proof, Proof)
    assert proof.reached == {sites[0].name: ("1 convolutions",)}
    assert not any("conv" in name for name in proof.dispatches)
    # The same spec for a program without that convolution.
    other = tmp_path / "other.mlir"
    other.write_text(matmul())
    found = prove(opened, Claim(other, opened.flags(), tmp_path / "other", tuple(sites)))
    assert isinstance(found, ProofFailure)
    assert found.stage is ProofStage.REACH


def test_entries_of_both_kinds_go_into_specs_of_their_own(
    opened: OpenProgram,
    entries: list[ConfigurationEntry],
    sites: list[ConvolutionEntry],
    tmp_path: Path,
) -> None:
    both = [next(e for e in entries if "matmul" in e.entry), *sites]
    proof = prove(opened, claim(opened, tmp_path, *both))
    assert isinstance(proof, Proof)
    assert proof.missed(both) == []
    assert len(list(tmp_path.glob("proof.*Entry.mlir"))) == 2


def test_one_that_fails_leaves_the_others(
    opened: OpenProgram, entries: list[ConfigurationEntry], tmp_path: Path
) -> None:
    nonsense = tmp_path / "nonsense.mlir"
    nonsense.write_text("nonsense")
    unwritable = ConfigurationEntry("x", nonsense, "main", "main", entries[0].configuration)
    found = prove_all(
        opened,
        [
            Claim(opened.program.path, opened.flags(), tmp_path / "unwritable", (unwritable,)),
            Claim(nonsense, opened.flags(), tmp_path / "broken", tuple(entries)),
            claim(opened, tmp_path, *entries),
            claim(opened, tmp_path / "no", given=(f"{SPEC_FLAG}{nonsense}",), before=nonsense),
        ],
    )  # fmt: skip
    stages = [one.stage if isinstance(one, ProofFailure) else "proven" for one in found]
    assert stages == [ProofStage.SPEC, ProofStage.WITHOUT, "proven", ProofStage.WITH]
    assert all("\n" not in one.message for one in found if isinstance(one, ProofFailure))


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("sleep 60", "took over 0.5 s"),
        ("kill -SEGV $$", "SIGSEGV"),
        ("exit 0", "exit status 0"),
        ('for last; do :; done; echo "no module" > "$last"', "Unable to parse module"),
    ],
    ids=["hangs", "crashes", "makes nothing", "lies"],
)
def test_a_compiler_that_fails_is_no_proof(
    opened: OpenProgram,
    entries: list[ConfigurationEntry],
    tmp_path: Path,
    script: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = tmp_path / "iree-compile"
    tool.write_text(f"#!/bin/bash\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(opened, "toolchain", Toolchain(tmp_path))
    found = prove(
        opened, claim(opened, tmp_path, *entries, timeout_s=0.5 if "sleep" in script else 60)
    )
    assert isinstance(found, ProofFailure)
    assert told in found.message


def test_the_program_can_be_made_on_the_way(opened: OpenProgram, tmp_path: Path) -> None:
    spec = write_halved_spec(MATMUL_AND_CONVOLUTION, tmp_path / "spec.mlir")
    made = tmp_path / "program.vmfb"
    given = (f"{SPEC_FLAG}{spec}",)
    proof = prove(opened, claim(opened, tmp_path, given=given, vmfb=made))
    assert isinstance(proof, Proof)
    assert set(proof.reached) == {"halved_0", "halved_1"}
    assert made.stat().st_size > 1000


def test_what_was_compiled_already_is_not_compiled_again(
    opened: OpenProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_halved_spec(MATMUL_AND_CONVOLUTION, tmp_path / "spec.mlir")
    given = (f"{SPEC_FLAG}{spec}",)
    first = prove(opened, claim(opened, tmp_path, given=given))
    assert isinstance(first, Proof)
    before = claim(opened, tmp_path).beside("before")
    asked: list[object] = []
    monkeypatch.setattr(
        type(opened.toolchain), "compile_many", lambda _, jobs, workers: asked.extend(jobs) or []
    )
    known = claim(opened, tmp_path, given=given, before=before, after=first.configured)
    again = prove(opened, known)
    assert not asked
    assert isinstance(again, Proof)
    assert again.reached == first.reached
    assert again.changes == first.changes
