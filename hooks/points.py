"""Hook points that hold their hooks to one rule: what a hook returns fits the place it is put in.

Stock TransformerLens takes whatever a hook returns. A tensor of another shape is then broadcast, re-cut into
other axes or refused deep inside the model, depending on the site.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformer_lens import hook_points

from hooks.errors import SiteError

__all__ = ["HookPoint", "fitted"]


class HookPoint(hook_points.HookPoint):
    """TransformerLens's hook point, whose hooks return what :func:`fitted` takes."""

    def add_hook(self, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> hook_points.LensHandle:
        """Add a hook ``f(tensor, hook) -> tensor or None``; see TransformerLens for the options."""

        def checked(tensor: Tensor, hook: Any) -> Tensor | None:
            return fitted(given, tensor, name=str(hook.name), hook=hook)

        given, handle = hook, super().add_hook(checked, *args, **kwargs)
        handle.user_hook = given
        return handle


def fitted(edit: Callable[..., Any], tensor: Tensor, *, name: str, **extra: Any) -> Tensor | None:
    """Show a tensor to an edit and return what it returns, if that can take the tensor's place.

    Parameters
    ----------
    edit : function
        Called as ``edit(tensor, **extra)``; it returns a tensor, or None for no change.
    tensor : Tensor
        What is there; the edit may change its values in place.
    name : str
        Of the site, for the error.

    Returns
    -------
    Tensor or None
        In the dtype of what was there: floating dtypes are converted to each other, and so are integer ones.

    Raises
    ------
    SiteError
        For another shape (of picks: but for their number), kind of dtype or device than the tensor's, naming
        what came and what is expected.
    """
    shape, dtype, device = tensor.shape, tensor.dtype, tensor.device
    changed = edit(tensor, **extra)
    after = tensor if changed is None else changed
    if isinstance(after, tuple) and len(after) == 1:  # the way torch writes a gradient
        after = after[0]
    if isinstance(after, Tensor) and _fits(after.shape, shape, name) and after.device == device:
        if after.dtype == dtype:
            return None if changed is None else after
        if _kind(after.dtype) == _kind(dtype):
            return after.to(dtype)
    raise SiteError(
        f"{name}: a hook returned {_described(after)}; valid: a {_kind(dtype)} tensor of shape {list(shape)} "
        f"on {device}, or None for no change"
    )


def _fits(after: torch.Size, shape: torch.Size, name: str) -> bool:
    # How many entries are picked is a query's own matter; missing ones are -1.
    return after == shape or (name.endswith("hook_picks") and after[:-1] == shape[:-1])


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_complex or dtype == torch.bool:
        return "complex" if dtype.is_complex else "bool"
    return "floating-point" if dtype.is_floating_point else "integer"


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"a {_kind(value.dtype)} tensor of shape {list(value.shape)} on {value.device}"
