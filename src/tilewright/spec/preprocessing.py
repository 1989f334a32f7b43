"""im2col for chosen convolutions: a transform spec that runs before IREE's global optimisation.

`--iree-global-opt-use-im2col-for-convs` turns every convolution into a matrix product, depthwise
ones included, which it makes several times slower. Here the choice is made for each shape, with
`--iree-preprocessing-transform-spec-filename=`. Worth most are strided 1x1 convolutions: by
default their stride stays in the indexing maps, where no pipeline for matrix products takes them.

IREE's own pass does the conversion. It converts all named convolutions of a function that it knows,
so those to be left alone are made generic first, as IREE itself does with them a little later:

    transform.named_sequence @__transform_main(%module) {
      %functions = transform.structured.match ops{["util.func"]} in %module
      %0 = transform.apply_registered_pass "…detach-elementwise-from-named-ops" to %functions
      %site = transform.structured.match ops{["linalg.conv_2d_nhwc_hwcf"]}          // for each site
          attributes {strides = …, dilations = …} filter_operand_types = […] in %module
      transform.annotate %site "tilewright.im2col"
      %all = transform.structured.match ops{["linalg.conv_2d_nhwc_hwcf", …]} in %module
      transform.foreach %all { transform.structured.generalize, unless annotated }
      transform.apply_registered_pass "…convert-conv2d-to-img2col" to %0
      transform.yield
    }

The first pass splits bias additions off, which IREE does for named ops only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import transform
from iree.compiler.dialects.transform import structured

from tilewright.errors import UserError
from tilewright.ir.session import SITE_PHASE
from tilewright.ir.walk import walk
from tilewright.spec import library

#: The phase whose module `conv_sites` reads, compiled without a spec.
PHASE = SITE_PHASE
#: Attributes on the program's module: how many convolutions of each site the spec found.
MARKER = library.IM2COL

_LEAVE_ALONE = "leave_alone_unless_chosen"
_CHOSEN = "tilewright.im2col"
_IM2COL = "iree-global-opt-convert-conv2d-to-img2col"
_DETACH = "iree-global-opt-detach-elementwise-from-named-ops"
# The ops that the pass converts, with the order of their dimensions.
_LAYOUTS = {"linalg.conv_2d_nhwc_hwcf": "nhwc", "linalg.conv_2d_nchw_fchw": "nchw"}
# Converted as well, into one dot product for each output value: never worth it.
_DEPTHWISE = "linalg.depthwise_conv_2d_nhwc_hwc"


@dataclass(frozen=True)
class ConvSite:
    """All convolutions of one shape in a program.

    op: MLIR's name of the op. types: those of input, filter and output, as MLIR writes them.
    strides, dilations: the attributes, as MLIR writes them. input, filter, output: sizes in the
    order of `layout` (`nhwc` with an hwcf filter, `nchw` with fchw). count: how many there are.
    """

    op: str
    types: tuple[str, str, str]
    strides: str
    dilations: str
    input: tuple[int, ...]
    filter: tuple[int, ...]
    output: tuple[int, ...]
    stride: tuple[int, int]
    element_types: tuple[str, str, str]
    count: int = 1

    @property
    def layout(self) -> str:
        """`nhwc` or `nchw`."""
        return _LAYOUTS[self.op]

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the filter."""
        height, width = self.filter[:2] if self.layout == "nhwc" else self.filter[2:]
        return height, width

    @property
    def key(self) -> str:
        """A readable name that no other shape of convolution has."""
        sizes = ["x".join(map(str, s)) for s in (self.input, self.filter, self.stride)]
        types = dict.fromkeys(self.element_types)
        return "_".join([self.layout, sizes[0], sizes[1], f"s{sizes[2]}", *types])

    @property
    def is_strided_1x1(self) -> bool:
        """Whether IREE's default makes it a slow `reduction` dispatch."""
        return self.window == (1, 1) and max(self.stride) > 1


def conv_sites(module: ir.Module | ir.Operation) -> list[ConvSite]:
    """The convolutions that can be converted, by shape.

    Args:
        module: the program at the phase `PHASE`.

    Returns:
        Sites in order of first occurrence. Convolutions with dynamic sizes or dilations, and
        depthwise and grouped ones, are none of them.
    """
    sites: dict[str, ConvSite] = {}
    for op in walk(module.operation):
        if op.name not in _LAYOUTS:
            continue
        site = _site(op)
        if site is not None:
            known = sites.get(site.key)
            sites[site.key] = replace(known, count=known.count + 1) if known else site
    return list(sites.values())


def choices(sites: Sequence[ConvSite]) -> dict[str, list[ConvSite]]:
    """Sets of sites worth trying as a whole.

    Args:
        sites: of a program.

    Returns:
        The sets by name: `strided-1x1`, `1x1`, `all`; without empty ones and those equal to an
        earlier one.
    """
    named = {
        "strided-1x1": [s for s in sites if s.is_strided_1x1],
        "1x1": [s for s in sites if s.window == (1, 1)],
        "all": list(sites),
    }
    found: dict[str, list[ConvSite]] = {}
    for name, chosen in named.items():
        if chosen and chosen not in found.values():
            found[name] = chosen
    return found


def write_im2col_spec(sites: Sequence[ConvSite]) -> str:
    """The text of a verified spec that makes exactly these convolutions matrix products.

    For plain `iree-compile`, with the flag above. Other convolutions compile as they do without it.

    Args:
        sites: each once; without sites the spec is valid and changes nothing.

    Returns:
        A module of the transform dialect.

    Raises:
        UserError: A site is given twice.
    """
    keys = [site.key for site in sites]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"im2col spec: the convolution '{key}' is given twice; keep one")
    with library.new_context(), ir.Location.unknown():
        module = library.new_module({})
        with ir.InsertionPoint(module.body):
            if sites:
                library.define(_LEAVE_ALONE, [library.any_op()], _leave_alone, consumes=True)
            library.define(
                library.PREPROCESSING_ENTRY_POINT, [library.any_op()], lambda m: _convert(m, sites)
            )
        module.operation.verify()
        return str(module.operation.get_asm())


def applied_sites(module: ir.Module | ir.Operation) -> dict[str, int]:
    """How many convolutions the spec found.

    Args:
        module: the program at the phase `PHASE`, or a later one that keeps the module's attributes,
            compiled with the spec.

    Returns:
        The number by the key of each site.
    """
    attributes = module.operation.attributes
    return {
        name.removeprefix(MARKER): ir.IntegerAttr(attributes[name]).value
        for name in attributes
        if name.startswith(MARKER)
    }


def _site(op: ir.Operation) -> ConvSite | None:
    types = [ir.RankedTensorType(value.type) for value in op.operands]
    if len(types) != 3 or not all(type_.has_static_shape for type_ in types):
        return None
    strides, dilations = (
        tuple(ir.DenseIntElementsAttr(op.attributes[name])) for name in ("strides", "dilations")
    )
    if max(dilations) > 1 or len(strides) != 2:
        return None
    names = [str(type_) for type_ in types]
    elements = [str(type_.element_type) for type_ in types]
    shapes = [tuple(type_.shape) for type_ in types]
    return ConvSite(
        op=op.name,
        types=(names[0], names[1], names[2]),
        strides=str(op.attributes["strides"]),
        dilations=str(op.attributes["dilations"]),
        input=shapes[0],
        filter=shapes[1],
        output=shapes[2],
        stride=(strides[0], strides[1]),
        element_types=(elements[0], elements[1], elements[2]),
    )


def _convert(module: ir.Value, sites: Sequence[ConvSite]) -> None:
    """The whole of the spec: detach, choose, leave the others alone, convert."""
    if not sites:
        return
    functions = library.match(module, [library.FUNCTION])
    prepared = transform.apply_registered_pass(library.any_op(), functions, _DETACH)
    for site in sites:
        found = _match_site(module, site)
        transform.AnnotateOp(found, _CHOSEN)
        count = transform.NumAssociationsOp(library.integer_type(), found).result
        transform.AnnotateOp(module, MARKER + site.key, param=count)
    every = transform.ForeachOp([], [library.match(module, [*_LAYOUTS, _DEPTHWISE])])
    with ir.InsertionPoint(every.body):
        # A failure ends the included sequence; the suppressing one around it goes on.
        attempt = transform.SequenceOp(
            transform.FailurePropagationMode.Suppress, [], every.body.arguments[0]
        )
        with ir.InsertionPoint(attempt.body):
            library.include(_LEAVE_ALONE, [attempt.bodyTarget])
            transform.YieldOp()
        transform.YieldOp()
    transform.apply_registered_pass(library.any_op(), prepared, _IM2COL)


def _leave_alone(convolution: ir.Value) -> None:
    """Make a convolution generic; fail on one that is chosen."""
    chosen = library.match(convolution, attributes={_CHOSEN: ir.UnitAttr.get()})
    count = transform.NumAssociationsOp(library.integer_type(), chosen).result
    transform.MatchParamCmpIOp(count, library.integer(0), transform.MatchCmpIPredicate.eq)
    structured.GeneralizeOp(convolution)


def _match_site(root: ir.Value, site: ConvSite) -> ir.Value:
    """A handle to the convolutions of the site in `root`; types and attributes are exact."""
    attributes = {
        "strides": ir.Attribute.parse(site.strides),
        "dilations": ir.Attribute.parse(site.dilations),
    }
    types = [ir.TypeAttr.get(ir.Type.parse(type_)) for type_ in site.types]
    return library.match(root, [site.op], attributes, filter_operand_types=ir.ArrayAttr.get(types))
