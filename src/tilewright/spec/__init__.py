from tilewright.spec.entry import OpConfig as OpConfig
from tilewright.spec.entry import SpecEntry as SpecEntry
from tilewright.spec.write import write_spec as write_spec
