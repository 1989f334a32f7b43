"""Search strategies: ask for configurations, tell the trials. Pure; knows spaces and numbers."""

from tilewright.search import (
    auto,
    genetic,
    grid,
    guided,
    random_search,
    xgboost_search,
)
from tilewright.search.budget import Allocation, BudgetTask, Patience, TrialAllocator
from tilewright.search.interface import Strategy
from tilewright.search.registry import (
    DEFAULT_STRATEGY,
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
    "auto",
    "check_strategy",
    "create_strategy",
    "find_strategy",
    "genetic",
    "grid",
    "guided",
    "parse_assignments",
    "parse_options",
    "random_search",
    "register",
    "strategies",
    "xgboost_search",
]
