"""The lightning indexer: cheap scores of every visible entry, from which each query picks a few.

score(t, s) = Σ_h w_h(t) · ReLU(q_h(t) · k_s), with w = W_weight x · d^-½ · H^-½ (DeepSeek-V4, arXiv 2606.19348).
Hierarchical picks keep whole blocks of entries first (DeepSeek-V4.1, arXiv 2609.19969). Picking is hard: no
gradient of the language-model loss reaches an indexer. It learns from :func:`imitation_loss` alone, which in turn
reaches nothing but indexers; how the official models train theirs is not sourced.

Axis legend: rows R, batch B, query T, entry E, index head H, index width d, pick k.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hooks.compressor import Branch, WindowTokens
from hooks.config import LayerConfig, ModelConfig
from hooks.numerics import RMSNorm, rope_tables, rotate, working_dtype
from hooks.picks import readable_picks, require_range
from hooks.points import HookPoint
from hooks.softmax import dot_products
from hooks.stored import store

__all__ = ["Choice", "Indexer", "block_pool", "imitation_loss", "pick_mask", "pool_mask", "top_picks"]


SORTED = 2048
"""Entries up to which picking sorts them all; beyond, a selection comes first."""


class Choice(NamedTuple):
    """What an indexer decides for the queries of one call.

    Attributes
    ----------
    picks : integer tensor [R, T, k] or None
        Best first, −1 where fewer are visible; None in dense mode.
    pool : integer tensor [R, T, p] or None
        Blocks inside which reindex layers pick.
    scores : float tensor [R, T, E] or None
        −inf where not visible; only if asked for.
    """

    picks: Tensor | None
    pool: Tensor | None
    scores: Tensor | None


class Indexer(nn.Module):
    """Index queries of one layer and, where the layer owns entries, index keys.

    Parameters
    ----------
    cfg, layer : ModelConfig, LayerConfig
        Sizes and variant; a reindex layer scores the keys of its owner.
    """

    def __init__(self, cfg: ModelConfig, layer: LayerConfig) -> None:
        super().__init__()
        assert layer.index_heads is not None
        assert layer.index_dim is not None
        self.layer = layer
        heads, width = layer.index_heads, layer.index_dim
        self.scale = (heads * width) ** -0.5
        self.rope_dims = min(layer.rope_dims, width - width % 2)
        self.W_Q = nn.Parameter(torch.empty(heads, cfg.d_model, width))
        self.W_weight = nn.Parameter(torch.empty(cfg.d_model, heads))
        if layer.role == "full":
            if layer.index_style == "compressor":
                self.compressor = Branch(cfg, layer, is_key=True, index=True)
            else:
                self.W_K = nn.Parameter(torch.empty(cfg.n_kv_heads * cfg.d_head, width))
                self.k_norm = RMSNorm(width)
            self.hook_key = HookPoint()
        self.hook_q, self.hook_weight, self.hook_scores = HookPoint(), HookPoint(), HookPoint()
        if layer.index_topk is not None:
            self.hook_picks = HookPoint()
        if layer.index_pool is not None:
            self.hook_pool = HookPoint()

    def keys(self, tokens: WindowTokens, latent: Float[Tensor, "b e g d_head"]) -> Float[Tensor, "b e d"]:
        """Index keys of the entries that close, as stored: from the tokens, or from the entries' latents."""
        if self.layer.index_style == "compressor":
            return self.hook_key(self.compressor(tokens.detached())[0].squeeze(2))
        key = self.k_norm(latent.detach().flatten(2) @ self.W_K)
        positions = torch.arange(tokens.first, tokens.first + key.shape[1], device=key.device)
        tables = rope_tables(positions * self.layer.stride, self.rope_dims, self.layer.rope_base, key.dtype)
        return self.hook_key(store(rotate(key[:, :, None], tables).squeeze(2), self.layer.index_precision))

    def choose(
        self,
        x: Float[Tensor, "r t m"],
        first_query: int,
        keys: list[Float[Tensor, "_ _ d"]],
        *,
        pool: Int[Tensor, "r t p"] | None = None,
        limit: int,
        keep: bool = False,
    ) -> Choice:
        """Score all visible entries for consecutive queries, and pick.

        Parameters
        ----------
        x : float tensor [R, T, d_model]
            Attention inputs of the queries.
        first_query : int
            Position of the first one.
        keys : list of float tensors [R or B, n, d]
            Index keys of all entries so far, in pieces.
        pool : integer tensor [R, T, p] or None
            Blocks of the owner, inside which a reindex layer picks.
        limit : int
            Memory: scores per head formed at once. Nothing larger is kept unless a hook or `keep` asks.
        keep : bool
            Return the scores.

        Raises
        ------
        SiteError
            If a hook picks an entry or keeps a block that does not exist.
        """
        x = x.detach()
        heads, m, width = self.W_Q.shape
        queries = torch.arange(first_query, first_query + x.shape[1], device=x.device)
        q = (x @ self.W_Q.permute(1, 0, 2).reshape(m, heads * width)).unflatten(-1, (heads, width))
        q = rotate(q, rope_tables(queries, self.rope_dims, self.layer.rope_base, q.dtype))
        q = self.hook_q(store(q, self.layer.index_precision))
        weight = self.hook_weight((x @ self.W_weight) * self.scale)
        total = sum(key.shape[1] for key in keys)
        size = max(1, limit // max(1, x.shape[0] * heads * total))
        whole = keep or bool(self.hook_scores.fwd_hooks or self.hook_scores.bwd_hooks) or pool is not None
        blocks = (
            self._block_scores(
                q[:, i : i + size], weight[:, i : i + size],
                keys if whole else self._seen(keys, first_query + min(i + size, x.shape[1]) - 1), queries[i : i + size],
            )
            for i in range(0, x.shape[1], size)
        )  # fmt: skip
        scores = None
        if keep or self.hook_scores.fwd_hooks or self.hook_scores.bwd_hooks:
            scores = self.hook_scores(torch.cat(list(blocks), dim=1))
            scores = scores.masked_fill(~self._visible(queries, total), -torch.inf)
            size, blocks = x.shape[1], iter([scores])
        if self.layer.index_topk is None:
            return Choice(None, None, scores)
        picks, pools = [], []
        for number, block in enumerate(blocks):
            here = slice(number * size, number * size + block.shape[1])
            picks.append(self._pick(block, None if pool is None else pool[:, here]))
            if self.layer.index_pool is not None:
                visible = (queries[here] + 1) // self.layer.stride
                pools.append(
                    block_pool(block.detach(), visible, self.layer.index_pool, self.layer.index_block)
                )
        formed = self.hook_pool(torch.cat(pools, dim=1)) if pools else None
        chosen = self.hook_picks(torch.cat(picks, dim=1))
        if self.hook_picks.fwd_hooks:
            chosen = readable_picks(
                chosen, (queries + 1) // self.layer.stride, total, name=str(self.hook_picks.name)
            )
        if formed is not None and self.hook_pool.fwd_hooks:
            require_range(
                formed, -(-total // self.layer.index_block), name=str(self.hook_pool.name), what="block"
            )
        return Choice(chosen, formed, scores)

    def _seen(self, keys: list[Tensor], query: int) -> list[Tensor]:
        """Keys of the entries that a query, or any before it, can see."""
        left, seen = (query + 1) // self.layer.stride, []
        for key in keys:
            seen.append(key[:, :left])
            left = max(0, left - key.shape[1])
        return seen

    def _visible(self, queries: Tensor, total: int) -> Tensor:
        """[T, E]: whether a query sees an entry."""
        return torch.arange(total, device=queries.device) < ((queries + 1) // self.layer.stride)[:, None]

    def _block_scores(self, q: Tensor, weight: Tensor, keys: list[Tensor], queries: Tensor) -> Tensor:
        """Scores [R, T, E], every head at once; −inf where an entry is not visible yet."""
        wide = working_dtype(q.dtype)
        products = torch.cat([dot_products(q, key[:, :, None]) for key in keys], dim=-1).to(wide)
        scores = (products.relu() * weight.to(wide).transpose(1, 2)[..., None]).sum(1)
        return scores.masked_fill(~self._visible(queries, scores.shape[-1]), -torch.inf)

    def _pick(self, scores: Tensor, pool: Tensor | None) -> Tensor:
        """Best entries [R, T, k], inside a pool of blocks if one is given."""
        if pool is not None:
            outside = ~pool_mask(pool, scores.shape[-1], self.layer.index_block)
            scores = scores.masked_fill(outside, -torch.inf)
        return top_picks(scores.detach(), self.layer.index_topk or 0)


def top_picks(scores: Float[Tensor, "*batch e"], k: int) -> Int[Tensor, "*batch k"]:
    """The k best entries, best first, ties to the lowest index, −1 where fewer are finite.

    The order is that of a stable sort: ``torch.topk`` breaks ties by length, so that picks would change with the
    sequence.
    """
    few = scores.shape[-1] <= max(SORTED, k)
    order = scores.argsort(dim=-1, descending=True, stable=True)[..., :k] if few else _best(scores, k)
    picks = order.masked_fill(torch.isneginf(scores.gather(-1, order)), -1)
    return nn.functional.pad(picks, (0, k - picks.shape[-1]), value=-1)


def _best(scores: Tensor, k: int) -> Tensor:
    """First k of the same stable order without sorting everything: all above the k-th value, then ties by index."""
    least = scores.topk(k, dim=-1, sorted=True).values[..., -1:]
    above, tied = scores > least, scores == least
    missing = k - above.sum(-1, keepdim=True)
    if bool((tied.sum(-1, keepdim=True) > missing).any()):
        tied &= tied.cumsum(-1, dtype=torch.int32) <= missing
    chosen = (above | tied).nonzero()[:, -1].view(*scores.shape[:-1], k)
    order = scores.gather(-1, chosen).argsort(dim=-1, descending=True, stable=True)
    return chosen.gather(-1, order)


def block_pool(
    scores: Float[Tensor, "*batch t e"], visible: Int[Tensor, " t"], size: int, block: int
) -> Int[Tensor, "*batch t size"]:
    """The best blocks of entries by their maximum, the block of the newest visible entry always among them.

    Parameters
    ----------
    scores : float tensor [..., T, E]
        −inf where an entry is not visible.
    visible : integer tensor [T]
        Entries each query sees.
    size, block : int
        Blocks kept; entries in a block.

    Returns
    -------
    integer tensor [..., T, size]
        Block numbers; −1 is empty.
    """
    missing = -scores.shape[-1] % block
    maxima = nn.functional.pad(scores, (0, missing), value=-torch.inf).unflatten(-1, (-1, block)).amax(-1)
    newest = torch.div(visible - 1, block, rounding_mode="floor")[:, None]
    is_newest = torch.arange(maxima.shape[-1], device=scores.device) == newest
    return top_picks(maxima.masked_fill(is_newest, torch.inf), size)


def pick_mask(picks: Int[Tensor, "r t k"], entries: int) -> Bool[Tensor, "r t e"]:
    """True at the entries that each query picked."""
    mask = torch.zeros((*picks.shape[:2], entries + 1), dtype=torch.bool, device=picks.device)
    return mask.scatter_(-1, torch.where(picks < 0, entries, picks), True)[..., :entries]


def pool_mask(pool: Int[Tensor, "r t p"], entries: int, block: int) -> Bool[Tensor, "r t e"]:
    """True at the entries of each query's blocks."""
    return pick_mask(pool, -(-entries // block)).repeat_interleave(block, dim=-1)[..., :entries]


def imitation_loss(
    scores: Float[Tensor, "r t e"], mass: Float[Tensor, "r t e"]
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """KL(attention ‖ softmax of the index scores) over visible entries, by query.

    Parameters
    ----------
    scores : float tensor [R, T, E]
        Index scores, −inf where not visible.
    mass : float tensor [R, T, E]
        Attention mass summed over heads as if every visible entry were attended; the target is its share
        per entry, detached (the objective of DeepSeek-V3.2's sparse attention, arXiv 2512.02556).

    Returns
    -------
    total, count : float tensor [], integer tensor []
        Sum over the queries that see any entry, and their number.
    """
    hidden = torch.isneginf(scores)
    mass = mass.detach()
    target = mass / mass.sum(-1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)
    log_index = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).log_softmax(-1)
    terms = torch.xlogy(target, target) - target * log_index.masked_fill(hidden, 0.0)
    return terms.sum(), (~hidden).any(-1).sum()
