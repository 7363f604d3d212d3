"""The one engine behind every intervention: many variants of one forward pass, exactly, for little more.

A variant is a clean run with edits at hook sites. A final-position edit in layer l leaves every earlier
position and layer as it was, so one prefill keeps what the final position reads and all variants run as one
batch of single positions, each joining at the layer of its first edit. Edits at all positions resume from
that layer's input. Reuse stops at the intervention, never behind it: from there on every variant has its own
stream, its own keys and, where the query closes a window, its own open window.

Axis legend: batch B (prompts of one chunk), variant U (variant 0 is the clean run), rows B·U = b·U + u.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from tqdm.auto import tqdm

from hooks.checks import require_choice
from hooks.errors import SiteError
from hooks.replay import fastest
from hooks.sites import HookedModel, check_names, site
from interp.batches import MEMORY, Plan, chunks, expected_seconds, plan, reads_maps
from interp.tasks.prompts import Prompts

__all__ = [
    "MEMORY",
    "At",
    "Edit",
    "Metric",
    "Plan",
    "Rows",
    "Variant",
    "accepted_logits",
    "activations",
    "answer_metrics",
    "chunks",
    "plan",
    "portions",
    "run",
]

At = Literal["final", "all"]


class Rows(NamedTuple):
    """Which prompts and positions an edit is given.

    Attributes
    ----------
    prompt : Int64[Tensor, "batch"]
        Row numbers in the prompts that are measured.
    positions : Int64[Tensor, "pos"]
        Absolute positions along the site's ``pos`` axis.
    """

    prompt: Int64[Tensor, " batch"]
    positions: Int64[Tensor, " pos"]


@dataclass(frozen=True)
class Edit:
    """What one variant changes at one site.

    Parameters
    ----------
    site : str
        Full hook name.
    apply : function
        ``apply(tensor, rows) -> tensor``: gets the site's values of this variant alone, with batch B, and
        returns what replaces them. It may change its argument in place.
    repeatable : bool
        Whether it does nothing but launch the same operations on the device whatever the values and rows are; on
        a GPU many batches of such edits are recorded once.
    """

    site: str
    apply: Callable[[Tensor, Rows], Tensor]
    repeatable: bool = False


@dataclass(frozen=True)
class Variant:
    """One intervention: its label and all it changes at once."""

    label: str
    edits: tuple[Edit, ...]

    @property
    def first_layer(self) -> int:
        """The layer whose input is still clean."""
        return min((site(edit.site).layer or 0 for edit in self.edits), default=0)


Metric = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
"""``metric(logits [batch, variant, d_vocab], prompt rows [batch]) -> name → values [batch, variant]``."""


def answer_metrics(prompts: Prompts) -> Metric:
    """Log-probability and margin of the answer, and whether it is the top token.

    The margin is the answer's logit minus the largest other one; ties go to the lowest token id. Where two
    tokens are right, their probabilities add, and the margin is that of the better one.
    """

    def metric(logits: Tensor, prompt: Tensor) -> dict[str, Tensor]:
        ids, own = accepted_logits(prompts, logits, prompt)
        other = logits.scatter(-1, ids, -torch.inf).amax(-1)
        return {
            "logprob": own.logsumexp(-1) - logits.logsumexp(-1),
            "margin": own.amax(-1) - other,
            "correct": (logits.argmax(-1, keepdim=True) == ids).any(-1),
        }

    return metric


def accepted_logits(prompts: Prompts, logits: Tensor, prompt: Tensor) -> tuple[Tensor, Tensor]:
    """Ids of the right tokens and their logits, both [batch, variant, right]; a token named twice counts once."""
    ids = prompts.accepted().to(logits.device)[prompt][:, None].expand(*logits.shape[:2], -1)
    own = logits.gather(-1, ids)
    own[..., 1:].masked_fill_(ids[..., 1:] == ids[..., :1], -torch.inf)
    return ids, own


def portions(
    model: HookedModel,
    prompts: Prompts,
    names: Sequence[str],
    variants: int,
    *,
    at: At = "final",
    memory: int = MEMORY,
    progress: bool | None = None,
    label: str = "prompts",
) -> Iterator[range]:
    """Yield the rows of one batch after another, each so small that a run of it and what it needs fit a budget.

    Parameters
    ----------
    model, prompts, at, memory, progress, label
        As in :func:`run`.
    names : sequence of str
        Sites whose activations are held for every prompt of the batch while it runs.
    variants : int
        How many run on it at once.
    """
    require_choice("at", at, get_args(At))
    count, length = prompts.tokens.shape
    # One prompt tells what the sites' tensors weigh, whatever the model's class.
    held = sum(
        tensor.nbytes
        for _, kept in activations(model, prompts, names, at=at, rows=range(1), progress=False)
        for tensor in kept.values()
    )
    planned = plan(
        model, count, length, variants * (1 if at == "final" else length), memory, held,
        whole_maps=reads_maps(names),
    )  # fmt: skip
    with tqdm(total=count, desc=label, disable=_quiet(progress), leave=False) as bar:
        joined = (model.cfg.n_layers + 1) / (2 * model.cfg.n_layers)  # the layers of a variant, on average
        work = 2 + joined * variants / (length if at == "final" else 1)  # the clean run is there twice
        _announce(bar, model, prompts.tokens, planned, variants, work)
        for rows in planned.batches:
            yield rows
            bar.update(len(rows))


@torch.no_grad()
def run(
    model: HookedModel,
    prompts: Prompts,
    variants: Sequence[Variant] = (),
    *,
    at: At = "final",
    metric: Metric | None = None,
    rows: range | None = None,
    memory: int = MEMORY,
    progress: bool | None = None,
    label: str = "prompts",
) -> dict[str, Float[Tensor, "variant n"]]:
    """Measure the clean run and every variant of it on every prompt.

    Parameters
    ----------
    model : HookedModel
        What to run.
    prompts : Prompts
        On what.
    variants : sequence of Variant
        Interventions.
    at : "final" or "all"
        Whether edits see the final position alone, or every position.
    metric : Metric, optional
        :func:`answer_metrics` if left out.
    rows : range, optional
        Only these prompts, under their own row numbers; all if left out.
    memory : int
        Budget for activations, in bytes; decides the batch, and how many variants share a prefill where those of
        one prompt are over it. One prompt with one variant runs in any case.
    progress : bool, optional
        Show a bar; None: only on a terminal.
    label : str
        Of the bar.

    Returns
    -------
    dict of str to Tensor [1 + len(variants), n]
        By metric; row 0 is the clean run. On the CPU.

    Raises
    ------
    SiteError
        If an edit names a site that does not exist or never fires.
    PhaselensError
        For another word than "final" or "all".
    """
    require_choice("at", at, get_args(At))
    check_names([edit.site for variant in variants for edit in variant.edits], model.site_names())
    metric = metric or answer_metrics(prompts)
    rows = rows if rows is not None else range(len(prompts))
    count, length = len(rows), prompts.tokens.shape[1]
    maps = reads_maps(edit.site for variant in variants for edit in variant.edits)

    def planned_for(n: int, many: int) -> Plan:
        return plan(
            model, n, length, many * (1 if at == "final" else length), memory, whole_maps=maps
        )  # fmt: skip

    # Where the variants of one prompt are over the budget together, they go through in parts.
    fit = bisect_right(range(1, len(variants) + 1), memory, key=lambda many: planned_for(1, many).bytes)
    most = max(1, fit)
    if most < len(variants):
        parted = [
            run(
                model, prompts, variants[i : i + most], at=at, metric=metric, rows=rows, memory=memory,
                progress=progress, label=f"{label}, part {i // most + 1} of {-(-len(variants) // most)}",
            )
            for i in range(0, len(variants), most)
        ]  # fmt: skip
        return {
            name: torch.cat([values, *(later[name][1:] for later in parted[1:])])
            for name, values in parted[0].items()
        }
    planned = planned_for(count, len(variants))
    parts: list[Mapping[str, Tensor]] = []
    with tqdm(total=count, desc=label, disable=_quiet(progress), leave=False) as bar:
        layers = sum(1 - one.first_layer / model.cfg.n_layers for one in variants)
        work = 1 + layers / (length if at == "final" else 1)
        _announce(bar, model, prompts.tokens[rows.start : rows.stop], planned, len(variants), work)
        forward = None
        for batch in planned.batches:
            chunk = rows[batch.start : batch.stop]
            prompt = torch.arange(chunk.start, chunk.stop, device=model.device)
            tokens = prompts.tokens[chunk.start : chunk.stop].to(model.device)
            forward = forward or _forward(model, variants, at, tokens, prompt, len(planned.batches))
            logits = forward(tokens, prompt)
            parts.append({name: values.T.cpu() for name, values in metric(logits, prompt).items()})
            bar.update(len(chunk))
    return {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}


def _announce(
    bar: tqdm, model: HookedModel, tokens: Tensor, planned: Plan, variants: int, work: float
) -> None:
    """Say what will be run, and what it will take, where anybody looks."""
    if not bar.disable:
        seconds = expected_seconds(model, tokens, planned, work)
        bar.write(f"{bar.desc.rstrip(': ')}: {planned.describe(variants, seconds)}", file=sys.stderr)
        bar.unpause()  # the time of the bar starts here


def _quiet(progress: bool | None) -> bool | None:
    return None if progress is None else not progress


def _forward(
    model: HookedModel, variants: Sequence[Variant], at: At, tokens: Tensor, prompt: Tensor, batches: int
) -> Callable[[Tensor, Tensor], Float[Tensor, "batch variant d_vocab"]]:
    """Return what runs `batches` batches like the one given."""
    # Variants join at their first layer, so those of one layer stand together behind all earlier ones.
    order = sorted(range(len(variants)), key=lambda i: variants[i].first_layer)
    joined = [variants[i] for i in order]
    back = torch.tensor([0, *(order.index(i) + 1 for i in range(len(order)))], device=model.device)

    def run(tokens: Tensor, prompt: Tensor) -> Tensor:
        if not variants:
            return model(tokens, last_only=True)
        return _run_chunk(model, tokens, prompt, joined, at).index_select(1, back)

    if all(edit.repeatable for variant in variants for edit in variant.edits):
        return fastest(model, run, tokens, prompt, batches=batches)
    return run


def _run_chunk(
    model: HookedModel, tokens: Tensor, prompt: Tensor, joined: Sequence[Variant], at: At
) -> Float[Tensor, "batch variant d_vocab"]:
    """Final-position logits of the clean run and every variant, which come in order of their first layers."""
    length = tokens.shape[1]
    past = model.start_cache(tokens.shape[0], rewind=False)
    if at == "final":
        if length > 1:
            model(tokens[:, :-1], past, last_only=True)
        tokens = tokens[:, -1:]
    # With an empty past a fork is the whole run again: rows of one sequence share nothing but its tokens,
    # which models that route by token id need in every layer.
    cache = past.fork()
    rows = Rows(prompt, torch.arange(length - tokens.shape[1], length, device=tokens.device))
    stream = model(tokens, cache, stop_at_layer=0)[:, None]
    present = 0
    for layer in range(model.cfg.n_layers):
        new = sum(variant.first_layer == layer for variant in joined)
        if new:
            stream = torch.cat((stream, stream[:, :1].expand(-1, new, *stream.shape[2:])), dim=1)
            present += new
        out = _layer(model, layer, stream, cache, joined[:present], rows)
        stream = out.unflatten(0, stream.shape[:2])
    return stream[:, :, -1]


def _layer(
    model: HookedModel, layer: int, stream: Tensor, cache: object, present: Sequence[Variant], rows: Rows
) -> Tensor:
    """Run one layer on all rows under the edits of the variants that are there."""
    edits: dict[str, list[tuple[int, Edit]]] = {}
    for index, variant in enumerate(present, start=1):
        for edit in variant.edits:
            if (site(edit.site).layer or 0) == layer and edit.site != "hook_embed":
                edits.setdefault(edit.site, []).append((index, edit))
    if layer == 0:
        stream = _edit_embedding(stream, present, rows)
    last = layer == model.cfg.n_layers - 1
    stop: dict[str, Any] = {"last_only": True} if last else {"stop_at_layer": layer + 1}
    width = stream.shape[1]
    hooks = [(name, _rowwise(chosen, width, rows)) for name, chosen in edits.items()]
    with model.hooks(fwd_hooks=hooks):
        return model(stream.flatten(0, 1), cache, start_at_layer=layer, **stop)


def _edit_embedding(stream: Tensor, present: Sequence[Variant], rows: Rows) -> Tensor:
    """Apply edits of ``hook_embed``, which lies before layer 0."""
    for index, variant in enumerate(present, start=1):
        for edit in variant.edits:
            if edit.site == "hook_embed":
                stream[:, index] = edit.apply(stream[:, index].clone(), rows)
    return stream


def _rowwise(edits: Sequence[tuple[int, Edit]], width: int, rows: Rows) -> Callable[..., Tensor]:
    """Return a hook that gives each variant's rows to its own edit and leaves all others untouched."""

    def hook(tensor: Tensor, hook: object) -> Tensor:
        split = tensor.unflatten(0, (-1, width)).clone()
        axes = site(edits[0][1].site).axes
        at = rows
        if "pos" in axes and split.shape[1 + axes.index("pos")] < len(rows.positions):
            at = rows._replace(positions=rows.positions[-split.shape[1 + axes.index("pos")] :])
        for index, edit in edits:
            split[:, index] = edit.apply(split[:, index], at)
        return split.flatten(0, 1)

    return hook


@torch.no_grad()
def activations(
    model: HookedModel,
    prompts: Prompts,
    names: Sequence[str],
    *,
    at: At = "final",
    rows: range | None = None,
    memory: int = MEMORY,
    progress: bool | None = None,
    label: str = "calibration",
) -> Iterator[tuple[range, dict[str, Tensor]]]:
    """Yield chunk by chunk the activations of chosen sites, at the final position or everywhere.

    Sites without a ``pos`` axis are yielded as they fire: with ``at="final"``, the entries that the final
    token closes. With `rows` only those prompts, under their own row numbers.

    Raises
    ------
    SiteError
        If a name never fires.
    """
    require_choice("at", at, get_args(At))
    check_names(names, model.site_names())
    if not names:
        raise SiteError(f"no site was asked for; valid: {', '.join(model.site_names()[:8])}, …")
    rows = rows if rows is not None else range(len(prompts))
    n, length = len(rows), prompts.tokens.shape[1]
    bar = tqdm(total=n, desc=label, disable=_quiet(progress), leave=False)
    with bar:
        for batch in chunks(model, n, length, 0, memory, names):
            chunk = rows[batch.start : batch.stop]
            tokens = prompts.tokens[chunk.start : chunk.stop].to(model.device)
            cache = None
            if at == "final":
                cache = model.start_cache(len(chunk), rewind=False)
                if length > 1:
                    model(tokens[:, :-1], cache, last_only=True)
                tokens = tokens[:, -1:]
            _, kept = model.run_with_cache(tokens, list(names), cache=cache)
            yield chunk, kept
            bar.update(len(chunk))
