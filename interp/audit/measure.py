"""Score an audit's prompts on a model, batch by batch, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

from tqdm.auto import tqdm

from hooks.sites import HookedModel
from interp import engine
from interp.audit.plan import Plan
from interp.audit.state import Score, State

__all__ = ["score"]

_TOKENS = 1 << 18
"""Tokens of prompts held at once."""


def score(
    model: HookedModel,
    plans: Sequence[Plan],
    state: State,
    *,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> None:
    """Score every prompt that has no score yet and add it to the state.

    Parameters
    ----------
    model : HookedModel
        Only its logits are needed.
    plans : sequence of Plan
        What to run.
    state : State
        Where scores go; those it has are not run again.
    memory : int
        Budget for activations, in bytes.
    progress : bool, optional
        Show a bar; None: only on a terminal.
    """
    pending = [(plan, query, state.done(plan, query)) for plan in plans for query in plan.queries]
    total = sum(plan.total for plan in plans)
    already = sum(done for _, _, done in pending)
    bar = tqdm(
        total=total, initial=already, desc="prompts", leave=False,
        disable=None if progress is None else not progress,
    )  # fmt: skip
    with bar:
        for plan, query, done in pending:
            bar.set_description(f"{plan.test}, query phase {query}")
            rows = max(1, min(512, _TOKENS // plan.length(query)))
            for prompts in plan.batches(query, first=done, rows=rows):
                values = engine.run(model, prompts, memory=memory, progress=False)
                columns = zip(
                    prompts.target_position.tolist(), values["correct"][0].tolist(),
                    values["logprob"][0].tolist(), values["margin"][0].tolist(), strict=True,
                )  # fmt: skip
                state.add(
                    {plan.row_id(query, done + i): Score(*columns_i) for i, columns_i in enumerate(columns)}
                )
                done += len(prompts)
                bar.update(len(prompts))
