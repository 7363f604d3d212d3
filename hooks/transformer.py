"""CompressedTransformer: a decoder whose compressed attention can be read and changed at every step."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hooks.attention import Attention
from hooks.cache import DecodeCache, LayerState, SharedEntries, for_rows
from hooks.config import ModelConfig
from hooks.engram import Engram, with_past
from hooks.errors import CheckpointError, ModelCheckError, PhaselensError
from hooks.geometry import ChunkGeometry
from hooks.numerics import RMSNorm
from hooks.points import HookPoint
from hooks.prefill import PrefillError, prefill_encoder, prefill_error
from hooks.rng import torch_rng
from hooks.running import StrictHooks, as_tokens
from hooks.selfcheck import check_model

__all__ = ["BlindGapWarning", "Block", "CompressedTransformer"]


class BlindGapWarning(UserWarning):
    """Some queries can read some recent tokens neither exactly nor through an entry."""


class MLP(nn.Module):
    """SwiGLU: W_out(silu(W_gate x) ⊙ W_in x)."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.W_gate = nn.Parameter(torch.empty(cfg.d_model, cfg.d_mlp))
        self.W_in = nn.Parameter(torch.empty(cfg.d_model, cfg.d_mlp))
        self.W_out = nn.Parameter(torch.empty(cfg.d_mlp, cfg.d_model))

    def forward(self, x: Float[Tensor, "r t m"]) -> Float[Tensor, "r t m"]:
        """Apply to every position."""
        return (nn.functional.silu(x @ self.W_gate) * (x @ self.W_in)) @ self.W_out


class Block(nn.Module):
    """Attention and MLP around the residual stream, each behind an RMSNorm."""

    def __init__(self, cfg: ModelConfig, index: int) -> None:
        super().__init__()
        self.engram = Engram(cfg, index) if cfg.layer(index).engram else None
        self.ln1 = RMSNorm(cfg.d_model)
        self.attn = Attention(cfg, index)
        self.hook_resid_pre, self.hook_attn_out = HookPoint(), HookPoint()
        self.hook_resid_mid, self.hook_resid_post = HookPoint(), HookPoint()
        if cfg.d_mlp:
            self.ln2 = RMSNorm(cfg.d_model)
            self.mlp = MLP(cfg)
            self.hook_mlp_out = HookPoint()

    def forward(
        self,
        x: Float[Tensor, "r t m"],
        state: LayerState | None = None,
        *,
        shared: SharedEntries | None = None,
        rewind: bool = False,
        queries: int | None = None,
        grams: Int[Tensor, "r past_and_t"] | None = None,
    ) -> tuple[Float[Tensor, "r q m"], LayerState, SharedEntries | None]:
        """One layer; see :meth:`hooks.attention.Attention.forward`; `grams` are the tokens behind `x`."""
        x = self.hook_resid_pre(x)
        if self.engram is not None:
            if grams is None:
                raise PhaselensError(
                    "a layer with an n-gram memory needs the tokens: start from them, or go on layer by layer with the "
                    "cache that saw them"
                )
            x = self.engram(x, grams)
        out, after, shared = self.attn(self.ln1(x), state, shared=shared, rewind=rewind, queries=queries)
        x = self.hook_resid_mid((x if queries is None else x[:, -queries:]) + self.hook_attn_out(out))
        if hasattr(self, "mlp"):
            x = x + self.hook_mlp_out(self.mlp(self.ln2(x)))
        return self.hook_resid_post(x), after, shared


class CompressedTransformer(StrictHooks):
    """A decoder-only transformer with chunked, sliding and full attention layers.

    Parameters
    ----------
    cfg : ModelConfig
        What to build; kept as ``model.cfg``.
    weights : dict of Tensor or None
        Every weight by parameter name; None draws them from ``cfg.seed``.

    Raises
    ------
    CheckpointError
        If `weights` does not fit the configuration, naming the tensor.
    ModelCheckError
        If the new model does not pass :meth:`check`.

    Attributes
    ----------
    name : str
        For display.
    task : dict or None
        Settings of the task it was trained on.
    """

    def __init__(self, cfg: ModelConfig, *, weights: dict[str, Tensor] | None = None) -> None:
        super().__init__()
        self.cfg: ModelConfig = cfg
        self.name = "model"
        self.task: dict[str, Any] | None = None
        # Given weights are compared with shapes alone, before anything of the configuration's size is allocated.
        with contextlib.nullcontext() if weights is None else torch.device("meta"):
            self.W_E = nn.Parameter(torch.empty(cfg.d_vocab, cfg.d_model))
            self.hook_embed = HookPoint()
            self.blocks = nn.ModuleList(Block(cfg, index) for index in range(cfg.n_layers))
            self.ln_final = RMSNorm(cfg.d_model)
            self.W_U = nn.Parameter(torch.empty(cfg.d_model, cfg.d_vocab))
        self.setup()
        if weights is None:
            self._initialise()
        else:
            self._adopt(weights)
        self._warn_of_blind_gaps()
        self.eval()
        self.check()

    # ------------------------------------------------------------------ what it is

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.W_E.device

    def geometry(self, layer: int) -> ChunkGeometry | None:
        """Geometry of a layer's compressor, None in layers without one."""
        return self.cfg.layer(layer).geometry

    def content_hash(self) -> str:
        """SHA-256 over configuration and weights."""
        digest = hashlib.sha256(json.dumps(self.cfg.to_dict(), sort_keys=True).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def trainable(self) -> nn.Module:
        """The module that maps tokens to logits and is trained: the model itself."""
        return self

    def auxiliary_loss(self) -> Float[Tensor, ""] | None:
        """How far the indexers are from the attention they imitate, after a forward pass in training mode.

        The mean over layers with an indexer of KL(attention ‖ index scores), see :mod:`hooks.indexer`. Its gradient
        reaches indexers alone; add it to the loss.

        Returns
        -------
        float tensor [] or None
            None without an indexer, or if the last pass saw no entry or was not in training mode.
        """
        losses = []
        for attention in self._attentions():
            if attention.imitation:
                total = torch.stack([part for part, _ in attention.imitation]).sum()
                count = torch.stack([part for _, part in attention.imitation]).sum()
                losses.append(total / count.clamp_min(1))
        return torch.stack(losses).mean() if losses else None

    def train(self, mode: bool = True) -> CompressedTransformer:
        """Set training mode; leaving it drops what :meth:`auxiliary_loss` would return."""
        if not mode:
            for attention in self._attentions():
                attention.imitation = []
        return super().train(mode)

    def _attentions(self) -> list[Attention]:
        return [module for module in self.modules() if isinstance(module, Attention)]

    # ------------------------------------------------------------------ running it

    def start_cache(self, batch: int, rewind: bool = True) -> DecodeCache:
        """Start an empty decode cache.

        Parameters
        ----------
        batch : int
            Number of sequences.
        rewind : bool
            Keep everything, so that ``crop`` works; otherwise only what later tokens can read.
        """
        return DecodeCache(self.cfg, batch, rewind)

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"] | Float[Tensor, "batch pos d_model"] | list[list[int]],
        cache: DecodeCache | None = None,
        *,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        last_only: bool = False,
    ) -> Float[Tensor, "batch out width"]:
        """Run the model.

        Parameters
        ----------
        tokens : integer tensor [batch, pos], or residual stream [batch, pos, d_model]
            The latter with `start_at_layer`. Positions continue those of the cache.
        cache : DecodeCache or None
            Absorbs the tokens; a forked one is read only and takes U rows per sequence.
        start_at_layer, stop_at_layer : int or None
            First layer to run; layer before which to stop and return the residual stream.
        last_only : bool
            In the last layer, final norm and unembedding, compute the last position alone.

        Returns
        -------
        float tensor [batch, pos, d_vocab]
            Logits; [batch, 1, d_vocab] with `last_only`; or the residual stream.

        Raises
        ------
        PhaselensError
            For ragged or empty input, ids outside the vocabulary, a cache of another model, batch or length.
            A call that raises leaves its cache as it was.
        ModelCheckError
            If logits are NaN or infinite.
        """
        first = start_at_layer or 0
        last = self.cfg.n_layers if stop_at_layer is None else stop_at_layer
        if not 0 <= first <= last <= self.cfg.n_layers:
            raise PhaselensError(f"layers {first} to {last} do not exist; valid: 0 to {self.cfg.n_layers}")
        ids = None
        if start_at_layer is None:
            ids = as_tokens(tokens, self.cfg.d_vocab, self.device, check_ids=not self.training)
        x = self._stream(tokens) if ids is None else self.hook_embed(nn.functional.embedding(ids, self.W_E))
        if cache is None:
            return self._run(x, ids, None, first, last, last_only)
        cache.require(self.cfg, x.shape[0], first, last)
        with cache.all_or_nothing():
            return self._run(x, ids, cache, first, last, last_only)

    def _run(
        self, x: Tensor, ids: Tensor | None, cache: DecodeCache | None, first: int, last: int, last_only: bool
    ) -> Tensor:
        """Run layers `first` … `last`−1 on a residual stream."""
        grams = self._grams(ids, cache, len(x))
        rewind = cache is not None and cache.rewind
        shared = cache.shared if cache is not None and first else None
        if shared is not None and cache is not None:
            shared = shared.for_rows(x.shape[0], cache.batch)
        for index in range(first, last):
            state = cache.layers[index] if cache is not None else None
            narrow = 1 if last_only and index == self.cfg.n_layers - 1 else None
            x, state, shared = self.blocks[index](
                x, state, shared=shared, rewind=rewind, queries=narrow, grams=grams
            )
            if cache is not None and not cache.forked:
                cache.layers[index] = state
        if cache is not None and last < self.cfg.n_layers:
            cache.shared, cache.grams = shared, grams
        elif cache is not None:
            cache.end_call(grams)
        return x if last < self.cfg.n_layers else self.logits(x[:, -1:] if last_only else x)

    def logits(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_vocab"]:
        """Norm and unembed the final residual stream.

        Raises
        ------
        ModelCheckError
            If logits are NaN or infinite, outside training mode.
        """
        logits = self.ln_final(x) @ self.W_U
        if not self.training:
            self.require_finite(logits)
        return logits

    def prefill_encoder(
        self, tokens: Int[Tensor, "batch pos"], cache: DecodeCache, replay: int | None = None
    ) -> Float[Tensor, "batch 1 d_vocab"]:
        """Fill an empty cache by running the encoder over the prompt and the decoder over its end.

        Parameters
        ----------
        tokens : integer tensor [batch, pos]
            The prompt.
        cache : DecodeCache
            Fresh from :meth:`start_cache`; it cannot be cropped afterwards.
        replay : int or None
            Tokens that run through the decoder; None: its longest exact window.

        Returns
        -------
        float tensor [batch, 1, d_vocab]
            Logits of the last token: an approximation, see :mod:`hooks.prefill`.

        Raises
        ------
        PhaselensError
            Without a decoder of its own, with a used cache, or for a replay below 1.
        """
        return prefill_encoder(self, tokens, cache, replay)

    def prefill_error(self, tokens: Int[Tensor, "batch pos"], replay: int | None = None) -> PrefillError:
        """Measure how far :meth:`prefill_encoder` is from the full forward pass on a prompt."""
        return prefill_error(self, tokens, replay)

    def cache_bytes_per_token(self) -> float:
        """Return by how many bytes the caches grow per token, see :meth:`ModelConfig.cache_bytes_per_token`."""
        return self.cfg.cache_bytes_per_token()

    def check(self) -> None:
        """Verify the model on a short random prompt, see :func:`hooks.selfcheck.check_model`.

        Raises
        ------
        ModelCheckError
            Naming the tensor or site that failed, and by how much.
        """
        check_model(self)

    @staticmethod
    def require_finite(logits: Tensor) -> None:
        """Raise :class:`~hooks.errors.ModelCheckError`, with the first place, if logits are NaN or infinite."""
        if not bool(torch.isfinite(logits).all()):
            where = (~torch.isfinite(logits)).nonzero()[0].tolist()
            raise ModelCheckError(f"logits are NaN or infinite, first at [batch, pos, token] = {where}")

    # ------------------------------------------------------------------ inside

    def _initialise(self) -> None:
        """Draw every weight from its own generator, seeded by (seed, parameter name)."""
        for name, parameter in self.named_parameters():
            last = name.rsplit(".", 1)[-1]
            if not last.startswith("W_"):
                continue
            # Maps are [..., fan_in, fan_out] or [maps, fan_in, kv_head, d_head].
            fan_in = parameter.shape[1] if parameter.ndim >= 3 else parameter.shape[0]
            std = fan_in**-0.5
            if last in ("W_E", "W_table"):
                std = 1.0
            elif last == "W_value":  # an n-gram memory starts as nothing
                std = 0.0
            elif last == "W_gate" and ".compressor." in name:
                std = self.cfg.layer(int(name.split(".")[1])).gate_init_std
            elif last in ("W_O", "W_out"):
                rows = self.cfg.n_heads * self.cfg.d_head if last == "W_O" else self.cfg.d_mlp
                std = (2 * self.cfg.n_layers * rows) ** -0.5
            values = torch.randn(parameter.shape, generator=torch_rng(self.cfg.seed, "init", name))
            with torch.no_grad():
                parameter.copy_(values * std)

    def _adopt(self, weights: dict[str, Tensor]) -> None:
        """Take given weights after checking that every name and shape fits."""
        expected = dict(self.named_parameters())
        for name in expected:
            if name not in weights:
                raise CheckpointError(
                    f"weight {name!r} is missing; the configuration needs {len(expected)} tensors"
                )
            if weights[name].shape != expected[name].shape:
                raise CheckpointError(
                    f"weight {name!r} has shape {list(weights[name].shape)}, "
                    f"the configuration needs {list(expected[name].shape)}"
                )
        foreign = [name for name in weights if name not in expected]
        if foreign:
            raise CheckpointError(f"weight {foreign[0]!r} belongs to no part of this configuration")
        self.load_state_dict(weights, assign=True)

    def _warn_of_blind_gaps(self) -> None:
        for index in range(self.cfg.n_layers):
            layer = self.cfg.layer(index)
            if layer.geometry is None or layer.tail == "open":
                continue
            s, w = layer.stride, layer.exact_window
            if w < s - 1:
                query = 2 * s - 2
                gap = layer.geometry.unreachable(query, w)
                warnings.warn(
                    f"layer {index}: exact_window={w} is smaller than stride-1={s - 1}: a query of query phase "
                    f"{s - 1} cannot reach {len(gap)} tokens of its open window (query {query}: positions "
                    f"{gap.start} to {gap.stop - 1})",
                    BlindGapWarning,
                    stacklevel=3,
                )

    def _grams(self, ids: Tensor | None, cache: DecodeCache | None, rows: int) -> Tensor | None:
        """Tokens of the call behind those before it, where a layer looks n-grams up."""
        if not any(block.engram is not None for block in self.blocks):
            return None
        if ids is not None:
            return with_past(None if cache is None else cache.tokens, ids, self.cfg.d_vocab)
        grams = None if cache is None else cache.grams
        return grams if grams is None or cache is None else for_rows(grams, rows, cache.batch)

    def _stream(self, x: Any) -> Tensor:
        if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[-1] != self.cfg.d_model:
            shape = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise PhaselensError(
                f"start_at_layer needs a residual stream [batch, pos, {self.cfg.d_model}], got {shape}"
            )
        return x
