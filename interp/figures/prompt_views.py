"""Figures of one followed prompt: its windows, the attention of its query, and its target by shift."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from hooks.errors import did_you_mean
from interp.figures.base import FigureError, require, weight
from interp.figures.cell_map import cell_map
from interp.figures.series import Series, lines
from interp.figures.theme import Theme

__all__ = ["attention_over_entries", "sharpest", "target_by_shift", "token_windows"]


def sharpest(followed: xr.Dataset) -> str:
    """The KV head whose key gate depends most on the target's phase.

    Raises
    ------
    FigureError
        If no KV head has gates.
    """
    if not followed.sizes["unit"]:
        raise FigureError("this model has no gates to follow: none of its layers is chunked")
    spread = followed["target_key"].max("residue") - followed["target_key"].min("residue")
    return str(spread.fillna(-1.0).idxmax("unit").item())


def token_windows(
    followed: xr.Dataset,
    unit: str,
    *,
    residue: int,
    branch: str = "key",
    token: int | None = None,
    around: int = 2,
    theme: Theme | None = None,
) -> go.Figure:
    """Draw the windows about a token as rows of cells: token words, coloured by their gate weights.

    Parameters
    ----------
    followed : Dataset
        Result of `follow`.
    unit : str
        KV head "layer.head" with gates.
    residue : int
        Which showing of the prompt.
    branch : "key" or "value"
        Whose gates.
    token : int, optional
        Position in the middle, outlined wherever it is; the target if left out.
    around : int
        Windows above and below.
    theme : Theme
        Size, fonts, light or dark.

    Raises
    ------
    FigureError
        For an unknown unit, or a branch without gates.
    """
    require(followed, ["gate_key", "gate_value", "word"], kind="follow")
    one = _of_unit(followed, unit)
    gate = one[f"gate_{branch}"].sel(residue=residue).values
    window, stride = int(one["window"]), int(one["stride"])
    gate = gate[:, :window]
    words = followed["word"].sel(residue=residue).values
    target = int(followed["target_position"].sel(residue=residue))
    middle = target if token is None else token
    closed = np.flatnonzero(np.isfinite(gate).any(1))
    if not len(closed):
        raise FigureError(f"unit {unit} has no {branch} gates; its keys and values are tied, or it has none")
    centre = min(middle // stride, int(closed[-1]))
    rows = [int(j) for j in closed if centre - around <= j <= centre + around]
    first = [(j + 1) * stride - window for j in rows]
    position = [[f + i for i in range(window)] for f in first]
    inside = [[p if p >= 0 else None for p in row] for row in position]
    outlined = [(r, c) for r, row in enumerate(inside) for c, p in enumerate(row) if p == middle]
    told = " and ".join(weight(float(gate[rows[r], c])) for r, c in outlined) or "no closed window"
    who = "The target key" if middle == target else "The chosen token"
    return cell_map(
        np.where([[p is not None for p in row] for row in inside], gate[rows], np.nan),
        rows=[f"entry {j}" for j in rows],
        columns=[str(i) for i in range(window)],
        x_title="offset in the window",
        y_title="",
        value_name=f"{branch} gate weight",
        limit=1.0,
        signed=False,
        texts=[
            [f"{words[p]}<br>{weight(gate[rows[r], c])}" if p is not None else "" for c, p in enumerate(row)]
            for r, row in enumerate(inside)
        ],
        row_mm=9.0,
        outlined=outlined,
        keys=inside,
        theme=theme,
        alt=(
            f"Windows {rows[0]} to {rows[-1]} of KV head {unit}, one row each, {window} tokens by offset. {who}, "
            f"{words[middle]} at position {middle}, has {branch} gate weight {told}."
        ),
        caption=(
            f"Tokens in their windows (W = {window}, S = {stride}); the stronger a cell's colour, the larger its weight in "
            f"the {branch} gate of {unit}. {who} is outlined. k: key, v: value, ?: marker, ·: filler."
        ),
    )


def attention_over_entries(
    followed: xr.Dataset, unit: str, *, residue: int, theme: Theme | None = None
) -> go.Figure:
    """Draw where the query position of one prompt looks, by entry, for every query head that reads a KV head.

    Parameters
    ----------
    followed : Dataset
        Result of `follow`.
    unit : str
        KV head.
    residue : int
        Which showing of the prompt.
    theme : Theme
        Size, fonts, light or dark.
    """
    require(followed, ["on_entry", "on_exact"], kind="follow")
    layer, kv = (int(part) for part in unit.split("."))
    share = int(followed.attrs["heads_per_kv"])
    readers = [f"{layer}.{h}" for h in range(kv * share, (kv + 1) * share)]
    chosen = followed.sel(residue=residue, reader=readers)
    entries = chosen["on_entry"].values
    entries = entries[:, np.isfinite(entries).all(0)]
    exact = chosen["on_exact"].sum("pos").values
    one = _of_unit(followed, unit)
    window, stride = int(one["window"]), int(one["stride"])
    target = int(chosen["target_position"])
    pooled = [j for j in range(target // stride, (target + window) // stride) if j < entries.shape[1]]
    most = chosen["on_target"].max()
    return cell_map(
        np.concatenate([entries, exact[:, None]], axis=1),
        rows=readers,
        columns=[*(str(j) for j in range(entries.shape[1])), "exact"],
        x_title="entry (last column: all exact tokens together)",
        y_title="query head",
        value_name="attention",
        limit=1.0,
        signed=False,
        texts=None,
        outlined=[(r, j) for r in range(len(readers)) for j in pooled],
        theme=theme,
        alt=(
            f"Attention of the query position by entry for heads {', '.join(readers)}; entry "
            f"{' and '.join(map(str, pooled)) or 'none'} pools the target and gets at most {weight(float(most))}."
        ),
        caption=(
            f"Attention of the query position over entries, for the query heads that read KV head {unit}. "
            "Outlined: entries that pool the target key."
        ),
    )


def target_by_shift(followed: xr.Dataset, unit: str, *, chosen: int, theme: Theme | None = None) -> go.Figure:
    """Draw the gate weights of target key and value, and the answer's probability, by shift of the target.

    Parameters
    ----------
    followed : Dataset
        Result of `follow`.
    unit : str
        KV head whose gates are drawn.
    chosen : int
        The shift that is marked.
    theme : Theme
        Size, fonts, light or dark.
    """
    require(followed, ["target_key", "target_value", "probability"], kind="follow")
    one = _of_unit(followed, unit)
    stride = int(followed.attrs["phase_stride"])
    order = np.argsort(followed["target_position"].values, kind="stable")[:stride]
    named = {"p(answer)": Series(followed["probability"].values[order].tolist())}
    for branch, what in (("key", "key gate on its key"), ("value", "value gate on its value")):
        weights = one[f"target_{branch}"].values[order]
        if np.isfinite(weights).any():
            named[what] = Series(weights.tolist())
    return lines(
        named,
        range(stride),
        x_title="shift of the target (tokens)",
        y_title="weight or probability",
        y_range=(-0.03, 1.03),
        chosen=chosen,
        cycle=stride,
        theme=theme,
        caption=(
            f"One base prompt with its target shifted by 0 to {stride - 1} tokens: gate weights in KV head "
            f"{unit} and the probability of the right answer. Dotted: the shift shown above."
        ),
    )


def _of_unit(followed: xr.Dataset, unit: str) -> xr.Dataset:
    labels = [str(u) for u in followed["unit"].values]
    if unit not in labels:
        raise FigureError(f"unit {unit!r} has no gates in this model; {did_you_mean(unit, labels)}")
    return followed.sel(unit=unit)
