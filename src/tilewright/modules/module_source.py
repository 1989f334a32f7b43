"""What `tilewright run` and `tilewright bench` have in common: a module, and how it comes about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import UnknownNameError, UserError
from tilewright.files import check_writable_file
from tilewright.ir.session import PHASES
from tilewright.tuning.parse import (
    ParameterFile,
    read_count,
    read_duration,
    read_parameters,
    read_path,
    read_texts,
)

# The end of all phases, as iree-compile's `--compile-to=` calls it: the compiled module.
END = "end"
VM_BYTECODE = "vm-bytecode"
#: What the compiled program can be written as: the form that runs, C source, the VM's assembly.
OUTPUT_FORMATS = (VM_BYTECODE, "vm-c", "vm-asm")
TIMEOUT_S = 600.0

# Options that say how a program is compiled: none of them means anything for a compiled module.
_COMPILING = {
    "target": "--target",
    "iree_flags": "--iree-flag",
    "iree_bin": "--iree-bin",
    "input_type": "--input-type",
    "spec": "--spec",
    "compile_to": "--compile-to",
    "dump_phases": "--dump-phases",
    "output_format": "--output-format",
    "save": "--save",
}


@dataclass(frozen=True)
class ModuleOptions:
    """How a program is compiled and where it runs. Making one checks the values (UserError).

    device: the runtime's, as IREE's `--device=` takes it; None: this CPU. threads: None for one on
    each core. iree_bin: a directory with IREE's tools. spec: a tuning spec, a result folder or a
    transform-dialect library. save: where what was compiled goes, in `output_format`, or as IR
    after the phase `compile_to` (`END`: the module itself; nothing is run then either).
    dump_phases: a folder for the IR after every phase. timeout_s: for one run of the program.
    """

    target: str | None = None
    threads: int | None = None
    device: str | None = None
    iree_flags: tuple[str, ...] = ()
    iree_bin: Path | None = None
    input_type: str | None = None
    spec: Path | None = None
    compile_to: str | None = None
    dump_phases: Path | None = None
    output_format: str | None = None
    save: Path | None = None
    parameters: tuple[ParameterFile, ...] = ()
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if self.compile_to is not None and self.compile_to not in (*PHASES, END):
            raise UnknownNameError("phase", self.compile_to, (*PHASES, END), "--compile-to")
        if self.compile_to == END and self.save is None and self.dump_phases is None:
            raise UserError(
                f"--compile-to {END}: gives a compiled module; name its file with --save FILE"
            )
        if self.output_format is not None:
            if self.output_format not in OUTPUT_FORMATS:
                raise UnknownNameError(
                    "output format", self.output_format, OUTPUT_FORMATS, "--output-format"
                )
            if self.phase is not None:
                raise UserError(
                    f"--output-format: with --compile-to {self.compile_to} there is only IR to "
                    "write; give one of the two"
                )
            if self.save is None:
                raise UserError("--output-format: nothing is written without --save FILE")
        for flag in self.iree_flags:
            if not flag.startswith("-"):
                raise UserError(
                    f"--iree-flag: '{flag}' is not a flag; write --iree-flag=--iree-opt-level=O3"
                )
        if self.save is not None:
            check_writable_file(self.save, "--save")
        folder = self.dump_phases
        if folder is not None and folder.exists() and not folder.is_dir():
            raise UserError(f"--dump-phases: {folder} is a file; name a folder")

    @property
    def phase(self) -> str | None:
        """The phase to stop at for its IR; None where the module is compiled to the end."""
        return None if self.compile_to == END else self.compile_to

    def check_compiled(self, path: Path) -> None:
        """Ask whether the options mean something for a compiled module.

        Args:
            path: the module.

        Raises:
            UserError: one says how to compile.
        """
        for name, flag in _COMPILING.items():
            if getattr(self, name):
                raise UserError(f"{flag}: {path} is compiled already; give the program instead")


def read_options(given: Mapping[str, Any]) -> ModuleOptions:
    """Options from the texts of a command line.

    Args:
        given: by field name; what is None was not given.

    Raises:
        UserError: a value is wrong; with its option.
    """
    values = {name: value for name, value in given.items() if value not in (None, ())}
    for name, (read, option) in _READ.items():
        if name in values:
            values[name] = read(values[name], option)
    return ModuleOptions(**values)


# What reads a field, and the option that its messages name.
_READ: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "threads": (read_count, "--threads"),
    "iree_flags": (read_texts, "--iree-flag"),
    "iree_bin": (read_path, "--iree-bin"),
    "spec": (read_path, "--spec"),
    "dump_phases": (read_path, "--dump-phases"),
    "save": (read_path, "--save"),
    "parameters": (read_parameters, "--parameters"),
    "timeout_s": (read_duration, "--timeout"),
}
