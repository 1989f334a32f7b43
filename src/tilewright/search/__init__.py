"""Search strategies: ask for configurations, tell the trials. Pure; knows spaces and numbers."""

from tilewright.search import (
    annealing,
    auto,
    bayesian,
    genetic,
    grid,
    guided,
    local,
    random_search,
    xgboost_search,
)
from tilewright.search.budget import Allocation, Patience, Task, TrialAllocator
from tilewright.search.interface import Strategy
from tilewright.search.options import Option, OptionValue, parse_assignments, parse_options
from tilewright.search.registry import (
    DEFAULT_STRATEGY,
    check_strategy,
    create_strategy,
    describe_strategies,
    find_strategy,
    register,
    strategies,
)

__all__ = [
    "DEFAULT_STRATEGY",
    "Allocation",
    "Option",
    "OptionValue",
    "Patience",
    "Strategy",
    "Task",
    "TrialAllocator",
    "annealing",
    "auto",
    "bayesian",
    "check_strategy",
    "create_strategy",
    "describe_strategies",
    "find_strategy",
    "genetic",
    "grid",
    "guided",
    "local",
    "parse_assignments",
    "parse_options",
    "random_search",
    "register",
    "strategies",
    "xgboost_search",
]
