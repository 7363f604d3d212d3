"""Hugging Face's DeepSeek-V4 with every hook site of our own models."""

from hooks.deepseek.cache import DeepseekCache
from hooks.deepseek.model import DeepseekSizes, HookedDeepseekV4, SlotLabel, hook_deepseek_v4

__all__ = ["DeepseekCache", "DeepseekSizes", "HookedDeepseekV4", "SlotLabel", "hook_deepseek_v4"]
