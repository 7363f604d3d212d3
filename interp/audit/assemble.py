"""From scores to results: one labelled Dataset for a test, one for its target × query table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from interp import stats
from interp.audit.inference import (
    POWER,
    GapTest,
    cross_shares,
    detectable_gap,
    gap_test,
    query_gap_test,
)
from interp.audit.plan import Plan
from interp.audit.state import Score
from interp.sweep import summarise
from interp.tasks import Prompts

__all__ = ["add_tests", "assemble", "crossing"]

_NO_PERMUTATION_BELOW = 2  # base prompts


def assemble(
    plan: Plan,
    scores: Mapping[int, Sequence[Score]],
    *,
    attrs: Mapping[str, Any],
    n_tests: int,
) -> dict[str, xr.Dataset]:
    """Turn the scores of one test into results.

    Parameters
    ----------
    plan : Plan
        The test.
    scores : mapping of int to sequence of Score
        By query phase, all rows in order.
    attrs : mapping
        Provenance.
    n_tests : int
        Tests in the whole audit: the verdict's level is 5% divided by it (Bonferroni).

    Returns
    -------
    dict of str to Dataset
        ``{test}``: as a phase sweep, with the attrs of :func:`add_tests`, without ``logprob`` and ``margin``
        where they are not known; ``{test}_query``: see :func:`crossing`, absent where there is one query phase.
    """
    rows = scores[plan.queries[0]]
    known = {name: all(getattr(s, name) is not None for s in rows) for name in ("logprob", "margin")}
    tables = {"correct": _fold([s.correct for s in rows], plan.modulus)}
    for name, stated in known.items():
        values = [getattr(s, name) if stated else float(s.correct) for s in rows]
        tables[name] = _fold(values, plan.modulus)
    sweep = summarise(
        tables,
        _positions(plan, rows),
        stride=plan.stride,
        seed=plan.seed,
        attrs={
            **attrs,
            **_plan_attrs(plan),
            "axis": "target",
            "period_on": "logprob" if known["logprob"] else "correct",
        },
    ).drop_vars([name for name, stated in known.items() if not stated])
    found = {plan.test: add_tests(sweep, n_tests=n_tests)}
    if len(plan.queries) > 1 and plan.crossed:
        found[f"{plan.test}_query"] = crossing(plan, scores, attrs=attrs)
    return found


def _plan_attrs(plan: Plan) -> dict[str, Any]:
    settings = plan.task.describe()
    counted = {"needle": settings.get("position"), "completion": "candidate_first", "recall": "key_first"}
    return {
        "test": plan.test,
        "task": json.dumps(settings, sort_keys=True),
        "placebo": int(plan.placebo),
        "position": str(counted[plan.test]),
        "n_per_residue": plan.n,
        "query_phase": plan.queries[0],
        "prompt_tokens": plan.length(plan.queries[0]),
        "seed": plan.seed,
        "confirmatory": int(plan.seed >= stats.CONFIRMATORY_SEED),
        "fingerprint": plan.fingerprint,
        **({"tests_left_out": list(plan.left_out)} if plan.left_out else {}),
    }


def _fold(values: Sequence[float], modulus: int) -> np.ndarray:
    return np.asarray(values).reshape(-1, modulus)


def _positions(plan: Plan, rows: Sequence[Score]) -> Prompts:
    """Where the targets were; the tokens themselves are not kept, a view of one zero stands for them."""
    index = torch.arange(len(rows))
    target = torch.tensor([s.target_position for s in rows])
    length = plan.length(plan.queries[0])
    return Prompts(
        tokens=torch.zeros((1, 1), dtype=torch.int64).expand(len(rows), length),
        answer=torch.zeros_like(index),
        target_position=target,
        query_position=length - 1,
        residue=index % plan.modulus,
        prompt_id=index // plan.modulus,
        modulus=plan.modulus,
    )


def add_tests(sweep: xr.Dataset, *, n_tests: int) -> xr.Dataset:
    """Add to a phase sweep what an audit decides on.

    Variables ``placebo_gap_pp placebo_null_pp placebo_p (placebo_stride)``. Attrs ``mean_accuracy``,
    ``gap_p`` (permutation), ``level``, ``gap_critical_pp`` and ``detectable_gap_pp`` (80% power at that
    level), ``found`` (1 if gap_p ≤ level, and no change with position explains the gap). Where positions are
    known and gap_p ≤ level: ``rest_gap_pp rest_gap_p rest_period rest_period_p``, the same less what a step and
    a slow change with position explain (:func:`interp.stats.without_position`), and ``step``, where it is.
    """
    correct = sweep["correct"].values.astype(float)
    stride, modulus, seed = (int(sweep.attrs[name]) for name in ("stride", "modulus", "seed"))
    level = stats.SIGNIFICANCE / n_tests
    own = gap_test(correct, stride, level=level, seed=seed)
    placebos = stats.placebo_strides(stride, modulus)
    tests = [gap_test(correct, placebo, given=stride, seed=seed) for placebo in placebos]
    added = {
        "placebo_gap_pp": [100 * t.gap for t in tests],
        "placebo_null_pp": [100 * t.null_mean for t in tests],
        "placebo_p": [t.p for t in tests],
    }
    sweep = sweep.assign_coords(placebo_stride=np.array(placebos, dtype=np.int64))
    sweep = sweep.assign({name: ("placebo_stride", np.array(v, dtype=float)) for name, v in added.items()})
    positional = _less_position(sweep, own, level) if own.p <= level else {}
    enough = len(correct) >= _NO_PERMUTATION_BELOW
    detectable = detectable_gap(correct, stride, own.critical, level=level, seed=seed) if enough else np.nan
    return sweep.assign_attrs(
        mean_accuracy=float(correct.mean()),
        null_gap_pp=sweep.attrs.get("null_gap_pp", 100 * own.null_mean),
        gap_p=own.p,
        level=level,
        gap_critical_pp=100 * own.critical,
        detectable_gap_pp=100 * detectable,
        power=POWER,
        found=int(own.p <= level and positional.get("rest_found", True)),
        **{name: value for name, value in positional.items() if name != "rest_found"},
    )


def _less_position(sweep: xr.Dataset, own: GapTest, level: float) -> dict[str, Any]:
    """What is left of a gap and a period when changes with position are taken away; {} if positions are unknown."""
    if "target_position" not in sweep:
        return {}
    position = sweep["target_position"].values
    stride, seed = int(sweep.attrs["stride"]), int(sweep.attrs["seed"])
    less = stats.without_position(sweep["correct"].values, position)
    rest = gap_test(less.values, stride, level=level, seed=seed)
    on = str(sweep.attrs.get("period_on", "correct"))
    measured = stats.without_position(sweep[on].values, position).values
    period = stats.find_period(measured, position, candidates=stats.candidates_for(stride), seed=seed)
    return {
        "rest_gap_pp": 100 * rest.gap,
        "rest_gap_p": rest.p,
        "rest_period": period.period,
        "rest_period_p": period.p,
        "step": less.step,
        # Without any noise the least remainder is significant: it must be the larger part as well.
        "rest_found": rest.p <= level and rest.gap >= own.gap / 2,
    }


def crossing(plan: Plan, scores: Mapping[int, Sequence[Score]], *, attrs: Mapping[str, Any]) -> xr.Dataset:
    """Accuracy by target phase and query phase, over base prompts shown at every query phase.

    Returns
    -------
    Dataset
        ``correct (query_phase, prompt, residue)``; ``accuracy accuracy_low accuracy_high (query_phase,
        phase)`` with BCa intervals; attrs ``target_gap_pp target_null_pp target_p`` and the same for
        ``query_…``, and ``share_target share_query share_interaction`` of what varies between cells (NaN
        where neither axis has p ≤ 5%).
    """
    rows = plan.crossed * plan.modulus
    queries = sorted(plan.queries)
    correct = np.stack([_fold([s.correct for s in scores[q][:rows]], plan.modulus) for q in queries])
    target = gap_test(correct.mean(axis=0), plan.stride, seed=plan.seed)
    query = query_gap_test(correct, seed=plan.seed)
    share = cross_shares(correct, plan.stride)
    told = min(target.p, query.p) <= stats.SIGNIFICANCE
    bounds = [stats.phase_intervals(table, plan.stride, seed=plan.seed) for table in correct]
    cells = ("query_phase", "phase")
    return xr.Dataset(
        {
            "correct": (("query_phase", "prompt", "residue"), correct),
            "accuracy": (cells, stats.phase_means(correct.mean(axis=1), plan.stride)),
            "accuracy_low": (cells, np.stack([low for low, _ in bounds])),
            "accuracy_high": (cells, np.stack([high for _, high in bounds])),
        },
        coords={
            "query_phase": queries,
            "prompt": np.arange(plan.crossed),
            "residue": np.arange(plan.modulus),
            "phase": np.arange(plan.stride),
        },
        attrs={
            **attrs,
            **_plan_attrs(plan),
            "n_per_residue": plan.crossed,
            "stride": plan.stride,
            "modulus": plan.modulus,
            "target_gap_pp": 100 * target.gap,
            "target_null_pp": 100 * target.null_mean,
            "target_p": target.p,
            "query_gap_pp": 100 * query.gap,
            "query_null_pp": 100 * query.null_mean,
            "query_p": query.p,
            "share_target": share.target if told else float("nan"),
            "share_query": share.query if told else float("nan"),
            "share_interaction": share.interaction if told else float("nan"),
        },
    )
