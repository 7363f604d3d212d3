"""Running a model under hooks, strictly: names are checked, hooks must fire, activations are copies.

Stock TransformerLens is silent when a hook never fires, and its cache keeps live tensors that later edits in
place change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from hooks.errors import ConfigError, PhaselensError, SiteError, did_you_mean
from hooks.sites import check_names, site

__all__ = [
    "Hooks",
    "StrictHooks",
    "as_tokens",
    "in_mode",
    "require_device",
    "require_plain_positions",
    "require_unread",
    "watched",
]

Hooks = Sequence[tuple[str | Callable[[str], bool], Callable[..., Any]]]


class StrictHooks(HookedRootModule):
    """A TransformerLens root module whose hooks are checked by name and by firing."""

    def site_names(self) -> list[str]:
        """Every hook name that fires in this model."""
        return list(self.hook_dict)

    @contextmanager
    def hooks(  # type: ignore[override]
        self, fwd_hooks: Hooks = (), bwd_hooks: Hooks = (), *, must_fire: bool = True, **kwargs: Any
    ) -> Iterator[Any]:
        """Context with temporary hooks ``f(tensor, hook) -> tensor or None``.

        Each must fire before its end, unless `must_fire` is False.

        Raises
        ------
        SiteError
            For a name that this model lacks, or one through which no call has run.
        """
        fired: set[str] = set()
        forward = [(name, _noting(fn, name, fired)) for name, fn in self._named(fwd_hooks)]
        back: set[str] = set()
        backward = [(name, _noting(fn, name, back)) for name, fn in self._named(bwd_hooks)]
        with super().hooks(fwd_hooks=forward, bwd_hooks=backward, **kwargs):  # type: ignore[arg-type]
            yield self
        if not must_fire:
            return
        missed = [name for name, _ in backward if name not in back]
        if missed and kwargs.get("reset_hooks_end", True):
            raise SiteError(
                f"the backward hook at {missed[0]!r} never fired: run backward() before hooks() ends, which "
                "run_with_hooks cannot do"
            )
        missed = [name for name, _ in forward if name not in fired]
        if missed:
            raise SiteError(
                f"{missed[0]!r} never fired: no call ran through it; "
                f"fired: {', '.join(sorted(fired)) or 'none'}"
            )

    def add_hook(self, name: Any, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Add a hook that stays until ``reset_hooks()``; its name, or one that its filter takes, must exist.

        Raises
        ------
        SiteError
            For a hook that does not exist.
        """
        self._named([(name, hook)])
        super().add_hook(name, hook, *args, **kwargs)

    def run_with_hooks(
        self,
        tokens: Any,
        fwd_hooks: Hooks = (),
        bwd_hooks: Hooks = (),
        reset_hooks_end: bool = True,
        **kwargs: Any,
    ) -> Tensor:
        """Run once under hooks, which are taken off again unless `reset_hooks_end` is False.

        Raises
        ------
        SiteError
            For a hook that does not exist or never fires.
        """
        with self.hooks(fwd_hooks=fwd_hooks, bwd_hooks=bwd_hooks, reset_hooks_end=reset_hooks_end):
            return self(tokens, **kwargs)

    def run_with_cache(
        self,
        tokens: Any,
        names_filter: str | Sequence[str] | Callable[[str], bool] | None = None,
        *,
        positions: int | slice | None = None,
        pos_slice: int | slice | None = None,
        device: torch.device | str | None = None,
        remove_batch_dim: bool = False,
        incl_bwd: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run once and copy the chosen activations as they are when their hook has fired.

        Parameters
        ----------
        tokens
            What the model takes.
        names_filter : str, list of str, predicate or None
            Which sites, all of which must fire; None keeps whatever fires. Nothing else is retained.
        positions : int, slice or None
            Keep only these along the ``pos`` axis (sites without one are kept whole).
        pos_slice
            TransformerLens's name for `positions`.
        device : torch.device or str, optional
            Where the copies are kept.
        remove_batch_dim : bool
            Drop the batch axis of the copies; for one prompt.
        incl_bwd : bool
            Refused: gradients come from a backward hook in ``hooks(bwd_hooks=...)``.

        Returns
        -------
        logits, activations : Tensor, dict of Tensor
            Detached copies, which later edits in place do not reach.
        """
        if incl_bwd:
            raise PhaselensError("incl_bwd=True: valid: False; read gradients in hooks(bwd_hooks=...)")
        if remove_batch_dim and len(torch.as_tensor(tokens)) != 1:
            raise PhaselensError("remove_batch_dim=True needs a batch of one prompt")
        positions = pos_slice if positions is None else positions
        kept: dict[str, Tensor] = {}

        def keep(tensor: Tensor, hook: HookPoint) -> None:
            axes = site(str(hook.name)).axes if positions is not None else ()
            if "pos" in axes:
                where = slice(positions, positions + 1 or None) if isinstance(positions, int) else positions
                tensor = tensor[(slice(None),) * axes.index("pos") + (where,)]
            tensor = tensor[0] if remove_batch_dim else tensor
            kept[str(hook.name)] = tensor.detach().to(device or tensor.device, copy=True)

        wanted = [(name, keep) for name in self._filtered(names_filter)]
        with self.hooks(fwd_hooks=wanted, must_fire=names_filter is not None):
            logits = self(tokens, **kwargs)
        return logits, kept

    def _named(self, hooks: Hooks) -> list[tuple[str, Callable[..., Any]]]:
        """Expand predicates to names, and check that every name exists."""
        named = []
        for name, fn in hooks:
            found = [one for one in self.site_names() if name(one)] if callable(name) else [name]
            if not found:
                raise SiteError("a hook's name filter matches no site of this model; see site_names()")
            named += [(one, fn) for one in found]
        check_names([name for name, _ in named], self.site_names())
        return named

    def _filtered(self, names_filter: Any) -> list[str]:
        if names_filter is None:
            return self.site_names()
        if callable(names_filter):
            found = [name for name in self.site_names() if names_filter(name)]
            if not found:
                raise SiteError("the name filter matches no site of this model; see site_names()")
            return found
        return [names_filter] if isinstance(names_filter, str) else list(names_filter)


def watched(*points: HookPoint) -> bool:
    """Whether any hook, forward or backward, sits on these hook points."""
    return any(point.fwd_hooks or point.bwd_hooks for point in points)


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Context with a whole model in training or evaluation mode; then each module has the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def require_plain_positions(
    attention_mask: Any, position_ids: Any, *, batch: int, new: int, past: int = 0
) -> None:
    """Raise for padding or shifted positions: compressors ignore masks, and phases follow the raw index.

    Parameters
    ----------
    attention_mask : [batch, new] or [batch, past + new], or None
        Ones.
    position_ids : [new], [1, new] or [batch, new], or None
        Consecutive from `past` on.
    batch, new, past : int
        Prompts of the call; its tokens; tokens absorbed before it.

    Raises
    ------
    PhaselensError
        For another shape or other values.
    """
    if attention_mask is not None:
        mask = _numbers(attention_mask, "attention_mask")
        shapes = list(dict.fromkeys([(batch, new), (batch, past + new)]))
        if tuple(mask.shape) not in shapes:
            raise PhaselensError(
                f"attention_mask has shape {list(mask.shape)}; valid: {' or '.join(str(list(s)) for s in shapes)}, "
                "all ones, or none; what a query attends to is edited at hook_attn_scores"
            )
        if not bool((mask == 1).all()):
            what = "zeros" if bool((mask == 0).any()) else "other values than 1"
            raise PhaselensError(
                f"attention_mask holds {what}: a compressor pools padding into entries, and padding moves later "
                "tokens to other phases; run prompts of different lengths in separate calls"
            )
    if position_ids is not None:
        given = _numbers(position_ids, "position_ids").cpu()
        expected = torch.arange(past, past + new)
        fits = tuple(given.shape) in ((new,), (1, new), (batch, new))
        if not fits or not bool((given == expected).all()):
            got = "" if fits else f", not a tensor of shape {list(given.shape)}"
            raise PhaselensError(
                f"position_ids must be {past} to {past + new - 1}{got}: windows follow the raw index, so other "
                "positions move phases and leak the future; leave position_ids out"
            )


def _numbers(value: Any, name: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise PhaselensError(f"{name} is no rectangular tensor of numbers; leave it out") from error


def require_device(device: str | torch.device) -> torch.device:
    """Return the device if torch can use it here.

    Raises
    ------
    ConfigError
        Naming the devices there are.
    """
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        count = torch.cuda.device_count()
        valid = ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
        raise ConfigError(f"no device {str(device)!r} here; {did_you_mean(str(device), valid)}") from error


def as_tokens(tokens: Any, d_vocab: int, device: torch.device, *, check_ids: bool = True) -> Tensor:
    """Check token ids and return them as an int64 tensor [batch, pos] on a device.

    Parameters
    ----------
    tokens : integer tensor [batch, pos] or [pos], or lists of ints
        Rectangular: there is no padding.
    d_vocab : int
        Size of the vocabulary.
    check_ids : bool
        Look at every id; on a GPU that waits for the device.

    Raises
    ------
    PhaselensError
        For ragged or empty input, numbers that are not integers, ids outside the vocabulary.
    """
    if not isinstance(tokens, Tensor):
        try:
            tokens = torch.as_tensor(tokens)
        except (ValueError, TypeError, RuntimeError) as error:
            raise PhaselensError(
                "tokens are ragged or not numbers; give one rectangular integer tensor [batch, pos]: there "
                "is no padding, run prompts of different lengths in separate calls"
            ) from error
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool or not tokens.numel():
        raise PhaselensError(
            f"tokens have shape {list(tokens.shape)} and dtype {tokens.dtype}; valid: a non-empty integer "
            "tensor [batch, pos] (a residual stream needs start_at_layer)"
        )
    tokens = tokens.to(device).long()
    if not check_ids:
        return tokens
    low, high = (int(value) for value in torch.aminmax(tokens))
    if low < 0 or high >= d_vocab:
        raise PhaselensError(
            f"token id {low if low < 0 else high} is outside the vocabulary; valid: 0 to {d_vocab - 1}"
        )
    return tokens


def _noting(fn: Callable[..., Any], name: str, fired: set[str]) -> Callable[..., Any]:
    """Wrap a hook so that it notes that it fired."""

    def wrapped(tensor: Tensor, hook: HookPoint) -> Any:
        fired.add(name)
        return fn(tensor, hook=hook)

    return wrapped


def require_unread(written: Bool[Tensor, "r h t hidden"], what: str) -> None:
    """Raise where a hook wrote to columns of an attention map whose keys and values were let go.

    Parameters
    ----------
    written : bool tensor [R, H, T, hidden]
        Which of these columns hold anything but what nobody reads.
    what : str
        Of the map: "scores" or "weights".

    Raises
    ------
    SiteError
        Naming the first such position.
    """
    if written.numel() and bool(written.any()):
        column = int(written.flatten(0, -2).any(0).nonzero()[0])
        raise SiteError(
            f"a hook gave attention {what} to position {column}, which this query cannot read and whose key and value "
            f"were let go; valid: positions from {written.shape[-1]} on, or a run of all tokens at once"
        )
