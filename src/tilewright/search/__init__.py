"""Search strategies: ask for configurations, tell the trials. Pure; knows spaces and numbers."""

# Each of these registers its strategy.
from tilewright.search import auto as auto
from tilewright.search import genetic as genetic
from tilewright.search import grid as grid
from tilewright.search import guided as guided
from tilewright.search import xgboost_search as xgboost_search
from tilewright.search.budget import Allocation, BudgetTask, Patience, TrialAllocator
from tilewright.search.interface import (
    DEFAULT_STRATEGY,
    Strategy,
    check_strategy,
    create_strategy,
    find_strategy,
    register,
    strategies,
)
from tilewright.search.strategy_options import Option, OptionValue, parse_assignments, parse_options

__all__ = [
    "DEFAULT_STRATEGY",
    "Allocation",
    "BudgetTask",
    "Option",
    "OptionValue",
    "Patience",
    "Strategy",
    "TrialAllocator",
    "check_strategy",
    "create_strategy",
    "find_strategy",
    "parse_assignments",
    "parse_options",
    "register",
    "strategies",
]
