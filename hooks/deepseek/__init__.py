"""Hugging Face's DeepSeek-V4 with every hook site of our own models."""

from hooks.deepseek.cache import DeepseekCache
from hooks.deepseek.files import load_deepseek_v4, save_deepseek_v4
from hooks.deepseek.model import HookedDeepseekV4, hook_deepseek_v4
from hooks.deepseek.sizes import DeepseekSizes, SlotLabel

__all__ = [
    "DeepseekCache",
    "DeepseekSizes",
    "HookedDeepseekV4",
    "SlotLabel",
    "hook_deepseek_v4",
    "load_deepseek_v4",
    "save_deepseek_v4",
]
