"""What a spec does to a program, as data: the kinds of entries there are.

A kind says with which flag of `iree-compile` its specs are given, how one is written, and how what
its entries reached is read off a program that was compiled with it. A new kind is one more class
here, in `KINDS`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tilewright.files import read_text, write_whole
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerState
from tilewright.site import KernelChoice
from tilewright.sketch.candidate import check_kernel, stored
from tilewright.sketch.interface import SiteExpression
from tilewright.target import Target
from tilewright.tiling import CompilationInfo
from tilewright.tuning.variants import (
    PREPROCESSING_FLAG,
    preprocessing_spec,
    without_preprocessing,
)

if TYPE_CHECKING:
    from iree.compiler import ir

    from tilewright.sketch.spec import KernelPart
    from tilewright.spec.preprocessing import ConvSite


class Entry(Protocol):
    """One thing that a spec shall do, by a name that no other entry of the spec has.

    preprocesses: whether what it does is done before dispatches are formed. takes_long: whether
    `prepare` makes most of what writing its spec takes.
    """

    preprocesses: ClassVar[bool]
    takes_long: ClassVar[bool]

    @property
    def name(self) -> str:
        """What marks in a program say that this entry did."""

    @staticmethod
    def flag(target: Target) -> str:
        """The flag of `iree-compile` that the path of a spec is put behind.

        Args:
            target: what is compiled for.

        Returns:
            The flag, `=` included.
        """

    def prepare(self, state: WorkerState, flags: Sequence[str]) -> None:
        """Make what takes long and keep it on the disk, for `write` by whatever worker. Runs in
        workers.

        Args:
            state: what the worker keeps.
            flags: as for `write`.

        Raises:
            UserError: The entry cannot be written.
        """

    @staticmethod
    def write(
        entries: Sequence[Any],
        state: WorkerState,
        flags: Sequence[str],
        header: Mapping[str, str],
    ) -> str:
        """The text of a spec for entries of this kind. Runs in workers.

        Args:
            entries: all of this kind.
            state: what the worker keeps.
            flags: those of the compile that the spec is for, without those that name specs.
            header: what made the spec, for what; left out where the kind has no room for it.

        Returns:
            A verified module of the transform dialect.

        Raises:
            UserError: An entry cannot be written.
        """

    @staticmethod
    def reached(program: ir.Module) -> dict[str, tuple[str, ...]]:
        """What entries of this kind reached. Runs in workers.

        Args:
            program: compiled with specs to the executable-configurations phase.

        Returns:
            By the name of an entry the dispatch functions, or other parts of the program, that it
            found; an entry that found none may be left out.
        """


@dataclass(frozen=True)
class ConfigurationEntry:
    """A configuration for a dispatch, wherever it occurs.

    configured: a program at the executable-configurations phase that has the dispatch, which is
    the function `entry` of `executable` there.
    """

    name: str
    configured: Path
    executable: str
    entry: str
    configuration: CompilationInfo
    preprocesses: ClassVar[bool] = False
    takes_long: ClassVar[bool] = False

    def prepare(self, state: WorkerState, flags: Sequence[str]) -> None:
        """See :meth:`Entry.prepare`."""

    @staticmethod
    def flag(target: Target) -> str:
        """See :meth:`Entry.flag`."""
        return target.spec_flag

    @staticmethod
    def write(
        entries: Sequence[ConfigurationEntry],
        state: WorkerState,
        flags: Sequence[str],
        header: Mapping[str, str],
    ) -> str:
        """See :meth:`Entry.write`."""
        from iree.compiler import ir

        from tilewright.ir.configuring import DispatchAttributes, strip
        from tilewright.ir.template import find_function
        from tilewright.spec.write import SpecEntry, write_spec

        with session(state, tuple(flags)).context as context:
            # The functions live as long as their modules.
            modules = [ir.Module.parse(one.configured.read_bytes(), context) for one in entries]
            written = []
            for module, one in zip(modules, entries, strict=True):
                function = find_function(module, one.executable, one.entry)
                attributes = DispatchAttributes.of(function, one.configuration)
                strip(function, marks=True)
                written.append(SpecEntry(one.name, function, attributes))
            return write_spec(written, header=header)

    @staticmethod
    def reached(program: ir.Module) -> dict[str, tuple[str, ...]]:
        """See :meth:`Entry.reached`."""
        from tilewright.ir.template import dispatch_functions
        from tilewright.ir.walk import string_attribute
        from tilewright.spec.library import MARKER

        found: dict[str, tuple[str, ...]] = {}
        for function in dispatch_functions(program).values():
            name = string_attribute(function, MARKER)
            if name:
                found[name] = (*found.get(name, ()), string_attribute(function, "sym_name"))
        return found


@dataclass(frozen=True)
class ConvolutionEntry:
    """All convolutions of one shape, to be made matrix products before anything else is done."""

    site: ConvSite
    preprocesses: ClassVar[bool] = True
    takes_long: ClassVar[bool] = False

    def prepare(self, state: WorkerState, flags: Sequence[str]) -> None:
        """See :meth:`Entry.prepare`."""

    @property
    def name(self) -> str:
        """See :attr:`Entry.name`."""
        return self.site.key

    @staticmethod
    def flag(target: Target) -> str:
        """See :meth:`Entry.flag`."""
        return f"{PREPROCESSING_FLAG}="

    @staticmethod
    def write(
        entries: Sequence[ConvolutionEntry],
        state: WorkerState,
        flags: Sequence[str],
        header: Mapping[str, str],
    ) -> str:
        """See :meth:`Entry.write`."""
        from tilewright.spec.preprocessing import write_im2col_spec

        return write_im2col_spec([one.site for one in entries])

    @staticmethod
    def reached(program: ir.Module) -> dict[str, tuple[str, ...]]:
        """See :meth:`Entry.reached`."""
        from tilewright.spec.preprocessing import applied_sites

        return {
            name: (f"{count} convolutions",)
            for name, count in applied_sites(program).items()
            if count
        }


@dataclass(frozen=True)
class KernelEntry:
    """A kernel of our own in the place of a site, wherever it occurs.

    site: the site's module, as `Site.module`; what is made of the kernel is kept beside it, since
    several specs of a run have the same kernels. expression: what it computes. target: what the
    kernel is for.
    """

    name: str
    site: Path
    expression: SiteExpression
    choice: KernelChoice
    target: Target
    preprocesses: ClassVar[bool] = True
    takes_long: ClassVar[bool] = True

    def prepare(self, state: WorkerState, flags: Sequence[str]) -> None:
        """See :meth:`Entry.prepare`."""
        self._part(state, flags)

    @staticmethod
    def flag(target: Target) -> str:
        """See :meth:`Entry.flag`."""
        return f"{PREPROCESSING_FLAG}="

    @staticmethod
    def write(
        entries: Sequence[KernelEntry],
        state: WorkerState,
        flags: Sequence[str],
        header: Mapping[str, str],
    ) -> str:
        """See :meth:`Entry.write`."""
        from tilewright.sketch.spec import join_parts

        return join_parts([one._part(state, flags) for one in entries], header)

    def _part(self, state: WorkerState, flags: Sequence[str]) -> KernelPart:
        """What a spec has of the kernel: as it is kept, or made and kept now."""
        from tilewright.schedule.build_tasks import with_processor
        from tilewright.sketch.candidate_tasks import sketched
        from tilewright.sketch.spec import KernelPart, SpecKernel, write_part
        from tilewright.sketch.spec_code import compile_into

        site, known = self.site.read_bytes(), stored(self.expression)
        decisive = (self.name, site, known, self.choice, self.target, tuple(flags))
        digest = hashlib.sha256(repr(decisive).encode()).hexdigest()[:16]
        kept = self.site.with_suffix(f".{digest}.mlirbc")
        if kept.exists():
            return KernelPart(self.name, site, kept.read_bytes())
        expression, kernel = sketched(state, known, self.choice, self.target)
        check_kernel(expression, kernel)
        target = with_processor(state, self.target)
        made = SpecKernel(self.name, site, kernel, self.choice, target)
        part = write_part(made, partial(compile_into, state, flags))
        write_whole(kept, part.code)
        return part

    @staticmethod
    def reached(program: ir.Module) -> dict[str, tuple[str, ...]]:
        """See :meth:`Entry.reached`: an executable's name for each time that it is dispatched."""
        from tilewright.ir.walk import walk
        from tilewright.spec.kernels import executables_of

        names = executables_of(program.operation)
        found: dict[str, tuple[str, ...]] = {}
        for op in walk(program.operation) if names else ():
            if op.name == "stream.cmd.dispatch":
                called = str(op.attributes["entry_points"][0].value[0])
                for name in names.get(called, ()):
                    found[name] = (*found.get(name, ()), called)
        return found


#: Every kind of entry. Those with one flag share a file, in which they act in this order.
KINDS: tuple[type[Entry], ...] = (ConfigurationEntry, ConvolutionEntry, KernelEntry)


def write_entries(
    entries: Sequence[Entry],
    state: WorkerState,
    flags: Sequence[str],
    header: Mapping[str, str],
) -> str:
    """The text of one spec for entries of one flag. Runs in workers.

    Args:
        entries: of one kind or of several; none give a tuning spec that changes nothing.
        state: what the worker keeps.
        flags: of the compile that the spec is for. Where they name a preprocessing spec, and the
            entries are for one, what that does comes first: the compiler takes one alone.
        header: what made the spec, for what.

    Returns:
        A verified module of the transform dialect.

    Raises:
        UserError: An entry cannot be written, or the specs do not go together.
    """
    from tilewright.spec.join import join_specs

    kinds = [kind for kind in KINDS if any(isinstance(one, kind) for one in entries)]
    plain = without_preprocessing(flags)
    texts = [
        kind.write([one for one in entries if isinstance(one, kind)], state, plain, header)
        for kind in kinds or [ConfigurationEntry]
    ]
    before = preprocessing_spec(flags)
    if before is not None and kinds and kinds != [ConfigurationEntry]:
        texts.insert(0, read_text(before, "preprocessing spec"))
    return texts[0] if len(texts) == 1 else join_specs(texts).text
