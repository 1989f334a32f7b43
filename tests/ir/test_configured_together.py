"""Which isolated dispatches are compiled together, and that nothing of the others is left in one.

That each is what it is alone is tested with whole programs (`tests/tuning/test_extract_tasks`).
"""

from __future__ import annotations

import pytest
from iree.compiler import ir

import dispatch_corpus as corpus
from tilewright.ir.configured_together import configure_together, joinable
from tilewright.ir.dispatches import ISOLATED_FUNCTION, find_dispatches, isolate
from tilewright.ir.session import CompilerSession
from tilewright.ir.walk import symbols


@pytest.fixture(scope="module")
def session() -> CompilerSession:
    return corpus.session()


def isolated(session: CompilerSession, name: str, executable: str) -> ir.Module:
    """The first dispatch of a case, whose executable gets a name."""
    text = session.compile(corpus.CASES[name].source, compile_to="flow")
    program = ir.Module.parse(text, session.context)
    site = find_dispatches(program)[0]
    alone = isolate(session, program, site).module
    return ir.Module.parse(
        str(alone).replace(f"@{site.executable}", f"@{executable}"), session.context
    )


def test_the_first_of_each_name_are_joined_that_are_nothing_else(session: CompilerSession) -> None:
    first, other = (isolated(session, "softmax", name) for name in ("one", "two"))
    with session.context, ir.Location.unknown():
        attributed = ir.Module.parse(str(isolated(session, "softmax", "three")))
        attributed.operation.attributes["noted"] = ir.UnitAttr.get()
        more = ir.Module.parse(str(isolated(session, "softmax", "four")))
        more.body.append(ir.Operation.parse("util.global private @state = 1 : i32"))
    assert joinable([first, first, attributed, more, other]) == [0, 4]
    assert joinable([]) == []


def test_each_has_its_own_alone(session: CompilerSession) -> None:
    cases = {"one": "softmax", "two": "matmul_bias_relu"}
    modules = [isolated(session, case, name) for name, case in cases.items()]
    for name, made in zip(cases, configure_together(session, modules), strict=True):
        named = {key: op.name for key, op in symbols(made).items()}
        assert named[name] == "hal.executable"
        assert named[ISOLATED_FUNCTION] == "util.func"
        assert not (cases.keys() - {name}) & named.keys()
        assert list(named.values()).count("util.func") == 1
        assert made.operation.verify()
