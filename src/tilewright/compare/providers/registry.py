"""The providers there are, by name: a new one is a module, and its line in `_MODULES`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tilewright.compare.providers.interface import Provider
from tilewright.errors import UnknownNameError, UserError
from tilewright.registration import registered

# Modules of this package, each of which has its providers in `PROVIDERS`; in the order of lists.
_MODULES = (
    "iree",
    "schedule",
    "numpy",
    "torch",
    "onnxruntime",
    "openvino",
    "tvm",
    "halide",
)


PROVIDERS: Mapping[str, type[Provider]] = MappingProxyType(
    {one.name: one for one in registered("tilewright.compare.providers", _MODULES, "PROVIDERS")}
)

DEFAULT = "iree,iree-tuned,numpy,torch"


def find_providers(
    text: str, known: Mapping[str, type[Provider]] = PROVIDERS, option: str = "--providers"
) -> list[Provider]:
    """The providers of a list such as `iree,iree-variant:data-tiling,numpy`, each once.

    Args:
        text: names separated by commas, each with what it takes after a colon.
        known: those there are.
        option: what named them, for messages.

    Returns:
        The providers in their order.

    Raises:
        UserError: there is no such provider (with the nearest name), or none is named.
    """
    found: dict[str, Provider] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, argument = part.partition(":")
        if name not in known:
            raise UnknownNameError("provider", name, known, option)
        provider = known[name](argument)
        found[provider.label] = provider
    if not found:
        raise UserError(f"{option}: no provider is named")
    return list(found.values())
