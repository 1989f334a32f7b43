"""What can be said of a module, and what cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.modules.module_source import ModuleOptions, read_options


def test_texts_become_values(tmp_path: Path) -> None:
    options = read_options(
        {
            "threads": "3",
            "timeout_s": "1m30s",
            "iree_flags": ("--iree-opt-level=O3",),
            "spec": str(tmp_path),
            "target": None,
            "parameters": (),
        }
    )
    assert options.threads == 3
    assert options.timeout_s == 90.0
    assert options.iree_flags == ("--iree-opt-level=O3",)
    assert options.spec == tmp_path
    assert (options.target, options.parameters) == (None, ())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"compile_to": "flwo"}, "--compile-to: unknown phase 'flwo'; did you mean 'flow'?"),
        ({"output_format": "vm-d", "save": "x.c"}, "unknown output format 'vm-d'; did you mean"),
        ({"output_format": "vm-c"}, "nothing is written without --save"),
        ({"output_format": "vm-c", "compile_to": "flow"}, "with --compile-to flow there is only"),
        ({"iree_flags": ("O3",)}, "--iree-flag: 'O3' is not a flag"),
        ({"threads": "none"}, "--threads: 'none' is not a whole number"),
        ({"timeout_s": "soon"}, "--timeout: 'soon' is not a duration"),
        ({"parameters": ("weights.irpa",)}, "must be SCOPE=FILE"),
        ({"save": "/no/such/folder/x.vmfb"}, "--save: there is no directory"),
    ],
)
def test_mistakes_name_the_option(given: dict[str, object], told: str) -> None:
    with pytest.raises(UserError) as error:
        read_options(given)
    assert told in str(error.value)


def test_a_file_where_a_folder_belongs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--dump-phases: .* is a file"):
        ModuleOptions(dump_phases=tmp_path / "file")


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"spec": "s.mlir"}, "--spec"),
        ({"target": "cpu"}, "--target"),
        ({"compile_to": "flow"}, "--compile-to"),
        ({"iree_flags": ("--x",)}, "--iree-flag"),
        ({"dump_phases": "folder"}, "--dump-phases"),
    ],
)
def test_a_compiled_module_cannot_be_compiled(given: dict[str, object], flag: str) -> None:
    with pytest.raises(UserError, match=f"{flag}: m.vmfb is compiled already"):
        read_options(given).check_compiled(Path("m.vmfb"))
    ModuleOptions(threads=2, timeout_s=5.0).check_compiled(Path("m.vmfb"))
