"""What a check of a result found, for people (Markdown) and for CI servers (JUnit XML)."""

from __future__ import annotations

from xml.etree import ElementTree

from tilewright import words
from tilewright.tables import Table
from tilewright.tuning.check_result import CaseStatus, ResultCheck

_MARKS = {CaseStatus.PASSED: "✓", CaseStatus.FAILED: "✗", CaseStatus.SKIPPED: "–"}


def markdown(check: ResultCheck) -> str:
    """The check as GitHub's Markdown.

    Args:
        check: what was found.

    Returns:
        A heading with the verdict, what was compared, a table of all cases, notes.
    """
    failed = len(check.failed)
    verdict = "holds" if check.ok else f"no longer holds ({words.plural(failed, 'failure')})"
    lines = [
        f"## tilewright: {check.folder.name} {verdict}",
        "",
        f"`{check.program.name}`, tuned with IREE {check.made_with} on {check.date}, checked with "
        f"IREE {check.checked_with} on {check.cpu} ({check.target_key or 'unknown target'}).",
        "",
    ]
    if check.speedup is not None and check.speedup_ci is not None:
        lines += [speed_table(check).markdown(), ""]
    lines += [cases_table(check).markdown()]
    lines += ["", *(f"- {note}" for note in check.notes)] if check.notes else []
    return "\n".join(lines) + "\n"


def cases_table(check: ResultCheck) -> Table:
    """Everything that was looked at.

    Args:
        check: what was found.
    """
    rows = tuple((_MARKS[one.status], one.kind, one.name, one.message) for one in check.cases)
    return Table(("", "what", "name", "found"), (), rows)


def speed_table(check: ResultCheck) -> Table:
    """The program before and after, now and as recorded.

    Args:
        check: one in which the program was timed.
    """
    assert check.speedup is not None
    assert check.speedup_ci is not None
    now = (
        f"now, IREE {check.checked_with}",
        words.significant(check.default_ms),
        words.significant(check.tuned_ms),
        f"{words.times(check.speedup)} ({words.interval(*check.speedup_ci)})",
    )
    recorded = (
        f"recorded, IREE {check.made_with}",
        words.significant(check.recorded_default_ms),
        words.significant(check.recorded_tuned_ms),
        f"{words.times(check.recorded)} ({words.interval(*check.recorded_ci)})",
    )
    columns = ("", "default ms", "tuned ms", "speed-up")
    return Table(columns, columns[1:], (now, recorded))


def junit(check: ResultCheck) -> bytes:
    """The check as a JUnit report, one test case for each thing that was looked at.

    Args:
        check: what was found.

    Returns:
        UTF-8 text of the XML file.
    """
    counts = {
        "tests": str(len(check.cases)),
        "failures": str(len(check.failed)),
        "errors": "0",
        "skipped": str(sum(1 for one in check.cases if one.status is CaseStatus.SKIPPED)),
    }
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "tilewright", **counts})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (
        ("made_with", check.made_with),
        ("checked_with", check.checked_with),
        ("target", check.target_key),
        ("speedup", "" if check.speedup is None else f"{check.speedup:.4f}"),
        ("recorded_speedup", f"{check.recorded:.4f}"),
    ):
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
    for one in check.cases:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {"classname": f"{check.folder.name}.{one.kind}", "name": one.name, "time": "0"},
        )
        if one.status is CaseStatus.FAILED:
            failure = ElementTree.SubElement(case, "failure", {"message": one.message})
            failure.text = one.message
        elif one.status is CaseStatus.SKIPPED:
            ElementTree.SubElement(case, "skipped", {"message": one.message})
        else:
            ElementTree.SubElement(case, "system-out").text = one.message
    ElementTree.indent(suites)
    return bytes(ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"
