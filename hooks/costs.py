"""What one forward pass holds of attention at a time, read off a configuration."""

from __future__ import annotations

from hooks.attention import GATHER_FROM, MAX_SCORES, WINDOW_BLOCK
from hooks.config import LayerConfig, ModelConfig

__all__ = ["scores_held"]


def scores_held(cfg: object, queries: int, length: int, *, whole: bool) -> int:
    """Attention scores of one layer, over all heads, that are alive at once.

    Parameters
    ----------
    cfg : ModelConfig or another class's config
        Only ours attends in blocks; of another class it is assumed that every layer forms its whole map.
    queries : int
        Query positions, those of all rows together.
    length : int
        Tokens that the last of them may see.
    whole : bool
        Whether hooks read or change the maps, which then are formed whole.

    Returns
    -------
    int
        Of the layer that holds most.
    """
    if not isinstance(cfg, ModelConfig):
        return queries * int(cfg.n_heads) * length  # type: ignore[attr-defined]
    columns = max(_columns(cfg.layer(i), length, whole) for i in range(cfg.n_layers))
    scores = queries * cfg.n_heads * columns
    return scores if whole else min(scores, max(MAX_SCORES, cfg.n_heads * columns))


def _columns(layer: LayerConfig, length: int, whole: bool) -> int:
    entries = 0 if layer.geometry is None else layer.geometry.n_entries(length)
    if whole or layer.attention == "full":
        return length + entries
    if layer.index_topk is not None and entries - 2 * layer.index_topk >= GATHER_FROM:
        entries = 2 * layer.index_topk
    reach = layer.stride if layer.tail == "open" else layer.exact_window
    # Short prompts attend in one block of all their queries; longer ones in blocks that read a window each.
    exact = length if length <= 4 * max(WINDOW_BLOCK, reach) else max(WINDOW_BLOCK, reach) + reach
    return min(length, exact) + entries
