"""What workers do for sites: translate them into tensor expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.measure.jobs import WorkerState
from tilewright.site import Site
from tilewright.sketch.interface import SiteExpression

_FUNCTION = "main"


@dataclass(frozen=True)
class TranslatedSite:
    """A site as a tensor expression; None where there is none, and `reason` says why."""

    expression: SiteExpression | None
    reason: str = ""


class _Dialects:
    """A context that knows IREE's dialects."""

    def __init__(self) -> None:
        from iree.compiler import ir

        self.context: Any = ir.Context()
        self.context.load_all_available_dialects()


def translate_site(state: WorkerState, request: Site) -> TranslatedSite:
    """Task: the tensor expression of a site.

    Args:
        state: the worker's.
        request: the site; its module is read.
    """
    from iree.compiler import ir

    from tilewright.sketch.scalar_bodies import Untranslatable
    from tilewright.sketch.translate import translate

    context = state.get(_Dialects).context
    with context, ir.Location.unknown(context):
        module = ir.Module.parse(request.module.read_bytes(), context)
        try:
            return TranslatedSite(translate(module, _FUNCTION, request.constant))
        except Untranslatable as refusal:
            return TranslatedSite(None, str(refusal))
