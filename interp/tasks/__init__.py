"""Phase-balanced data: every prompt has one scored target at a known position."""

from interp.tasks.balance import PositionBalance, placebo_strides
from interp.tasks.completion import CompletionLength, CompletionTask
from interp.tasks.needle import NeedleTask
from interp.tasks.prompts import PositionDeviation, Prompts, Task
from interp.tasks.recall import RecallTask
from interp.tasks.tokenizers import HuggingFaceTokenizer, TekkenTokenizer, TextTokenizer

__all__ = [
    "CompletionLength",
    "CompletionTask",
    "HuggingFaceTokenizer",
    "NeedleTask",
    "PositionBalance",
    "PositionDeviation",
    "Prompts",
    "RecallTask",
    "Task",
    "TekkenTokenizer",
    "TextTokenizer",
    "placebo_strides",
]
