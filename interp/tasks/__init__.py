"""Phase-balanced data: every prompt has one scored target at a known position."""

from interp.tasks.balance import PositionBalance, placebo_strides
from interp.tasks.needle import NeedleTask
from interp.tasks.prompts import PositionDeviation, Prompts, Task
from interp.tasks.recall import RecallTask

__all__ = [
    "NeedleTask",
    "PositionBalance",
    "PositionDeviation",
    "Prompts",
    "RecallTask",
    "Task",
    "placebo_strides",
]
