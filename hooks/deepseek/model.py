"""HookedDeepseekV4: the Hugging Face class run layer by layer, with every site of our own models.

Axis legend: batch B, pos T, hyper-connection streams C, d_model m. Residual sites are [B, T, C, m]: there is
no single residual stream.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module
from transformers import DynamicCache
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Attention

from hooks.deepseek.cache import DeepseekCache
from hooks.deepseek.checks import check_model, refuse_model, require_dtypes, require_finite
from hooks.deepseek.pooling import Call
from hooks.deepseek.sizes import SlotLabel, sizes_of, slots
from hooks.deepseek.taps import ATTENTION, FIRING_ORDER, BlockSites, LayerTap, plain
from hooks.errors import ConfigError, PhaselensError
from hooks.geometry import ChunkGeometry
from hooks.identity import hash_model
from hooks.points import HookPoint
from hooks.running import StrictHooks, as_tokens, require_plain_positions

__all__ = ["HookedDeepseekV4", "hook_deepseek_v4"]

_CACHE_ARGUMENT = (
    "cache" if "cache" in inspect.signature(DeepseekV4Attention.forward).parameters else "past_key_values"
)


class HookedDeepseekV4(StrictHooks):
    """A Hugging Face ``DeepseekV4ForCausalLM`` with the hook sites of our own models.

    The given model is left as it is: modules are copied, weights and buffers are shared. The copy is wrapped
    by the TransformerLens bridge (:attr:`bridge`), whose own hooks on the same run stay usable. The mHC
    mixing around each layer is done here, everything else by the class's own code; a check at construction
    holds the logits bit-equal to the class's.

    Parameters
    ----------
    hf_model : DeepseekV4ForCausalLM
        Eager attention.
    name : str or None
        For display.
    check : bool
        Run :func:`~hooks.deepseek.checks.check_model` at once.

    Raises
    ------
    ConfigError
        For another class, other attention than eager, quantized weights on a CPU.
    ModelCheckError
        If a promised site does not fire, or sums do not add up, e.g. after a transformers upgrade.

    Notes
    -----
    Edits at ``hook_k`` and at compressor sites reach later calls through the cache. Edits of one read
    (``hook_rot_k``, ``hook_v``, ``hook_entry_k``, ``hook_entry_v``) last for the call: the class stores one
    tensor for keys and values.
    """

    plain: Any
    hf: Any
    bridge: Any
    layers: list[Any]
    blocks: Any

    def __init__(self, hf_model: Any, *, name: str | None = None, check: bool = True) -> None:
        super().__init__()
        refuse_model(hf_model)
        config = hf_model.config
        shared = {id(t): t for t in [*hf_model.parameters(), *hf_model.buffers()]}
        # Kept out of the module tree: setup() would rename the bridge's components.
        self.__dict__["plain"] = hf_model
        self.__dict__["hf"] = copy.deepcopy(hf_model, shared).eval()
        self._pairs = list(zip(self.hf.modules(), hf_model.modules(), strict=True))
        self.__dict__["bridge"] = build_bridge_from_module(
            self.hf, "DeepseekV4ForCausalLM", hf_config=self.hf.config
        )
        self.hf.config._attn_implementation = ATTENTION
        self.cfg = sizes_of(config, next(hf_model.parameters()).device)
        self.task: dict[str, Any] | None = getattr(config, "phaselens_task", None)
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList(BlockSites(kind) for kind in config.layer_types)
        self.setup()
        self.name = name or getattr(config, "name_or_path", "") or "deepseek-v4"
        self._call: Call | None = None
        self.__dict__["layers"] = [plain(layer) for layer in self.hf.model.layers]
        for index, layer in enumerate(self.layers):
            LayerTap(self.blocks[index].attn, layer.self_attn, self.geometry(index), lambda: self._call)
        self.eval()
        if check:
            check_model(self, hf_model)

    # ------------------------------------------------------------------ what it is

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.plain.lm_head.weight.device

    def geometry(self, layer: int) -> ChunkGeometry | None:
        """Geometry of a layer's compressor, None in sliding layers."""
        return self.cfg.geometry(layer)

    def slot_labels(self, layer: int, entry: int = 1) -> list[SlotLabel]:
        """Say what each slot of an entry holds (the gate's axis `offset`).

        Parameters
        ----------
        layer : int
            A layer with a compressor.
        entry : int
            By default the first one without clipped slots.

        Raises
        ------
        ConfigError
            If the layer has no compressor, or there is no such entry.
        """
        geometry = self.geometry(layer)
        if geometry is None:
            compressed = [i for i, stride in enumerate(self.cfg.stride) if stride]
            raise ConfigError(
                f"layer {layer} has no compressor; valid: {', '.join(map(str, compressed)) or 'none'}"
            )
        return slots(geometry, entry)

    def site_names(self) -> list[str]:
        """Every hook name that fires in this model, in order of firing."""
        names = [f"blocks.{i}.{kind}" for i in range(self.cfg.n_layers) for kind in FIRING_ORDER]
        return ["hook_embed", *(name for name in names if name in self.hook_dict)]

    def content_hash(self) -> str:
        """SHA-256 over configuration and weights."""
        tensors = dict(self.plain.named_parameters()) | dict(self.plain.named_buffers())
        return hash_model(self.plain, tensors)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of the Hugging Face model."""
        return self.plain.named_parameters(*args, **kwargs)

    def trainable(self) -> Any:
        """Return the Hugging Face model: what changes in it changes here."""
        return self.plain

    def to_tokens(self, tokens: Any) -> Tensor:
        """Check token ids; text needs a tokenizer, which is not part of a model here."""
        return as_tokens(tokens, self.cfg.d_vocab, self.device)

    def train(self, mode: bool = True) -> HookedDeepseekV4:
        """Only evaluation is hooked; train the Hugging Face model itself.

        Raises
        ------
        PhaselensError
            When asked for training mode.
        """
        if mode:
            raise PhaselensError(
                "a hooked DeepSeek-V4 only evaluates; train the Hugging Face model, then hook it"
            )
        return super().train(False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> HookedDeepseekV4:
        """Move or cast the given model, and this one with it."""
        self.plain._apply(fn, recurse)
        self._follow()
        return self

    def _follow(self) -> None:
        """Point to the given model's tensors, wherever they have gone."""
        for mine, theirs in self._pairs:
            mine._parameters.update(theirs._parameters)
            mine._buffers.update(theirs._buffers)
        if str(self.device) != self.cfg.device:
            self.cfg = dataclasses.replace(self.cfg, device=str(self.device))

    # ------------------------------------------------------------------ running it

    def start_cache(self, batch: int, rewind: bool = True) -> DeepseekCache:
        """Start an empty decode cache. The class cannot rewind, whatever is asked: `crop` raises."""
        return DeepseekCache(DynamicCache(config=self.hf.config), batch)

    def forward(
        self,
        tokens: Any,
        cache: DeepseekCache | None = None,
        *,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        last_only: bool = False,
        token_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Float[Tensor, "batch out *width"]:
        """Run the model.

        Parameters
        ----------
        tokens : integer tensor [batch, pos], or residual streams [batch, pos, stream, d_model]
            The latter with `start_at_layer`. Positions continue those of the cache.
        cache : DeepseekCache or None
            Absorbs the tokens; a forked one is read only and takes U rows per sequence.
        start_at_layer, stop_at_layer : int or None
            First layer to run; layer before which to stop and return the residual streams.
        last_only : bool
            In the last layer's MLP, the final norm and the unembedding, compute the last position alone.
        token_ids : integer tensor [batch, pos] or None
            With `start_at_layer`, for MoE layers that route by token id. A forked cache remembers those of
            the call that began with tokens.
        attention_mask, position_ids : Tensor or None
            Only what changes nothing: all ones; 0, 1, 2 … continuing the cache.

        Returns
        -------
        float tensor [batch, pos, d_vocab]
            Logits; [batch, 1, d_vocab] with `last_only`; or the residual streams.

        Raises
        ------
        PhaselensError
            For ragged or empty input, padding, other positions, a batch that does not fit the cache.
        ModelCheckError
            If logits are NaN or infinite.
        """
        self._follow()
        require_dtypes([self.plain.lm_head.weight])
        first, last = start_at_layer or 0, self.cfg.n_layers if stop_at_layer is None else stop_at_layer
        if not 0 <= first <= last <= self.cfg.n_layers:
            raise PhaselensError(f"layers {first} to {last} do not exist; valid: 0 to {self.cfg.n_layers}")
        if start_at_layer is None:
            ids: Tensor | None = as_tokens(tokens, self.cfg.d_vocab, self.device)
            streams = self._embedded(ids)
        else:
            ids = token_ids if token_ids is not None or cache is None else cache.ids_for(tokens)
            ids = None if ids is None else as_tokens(ids, self.cfg.d_vocab, self.device)
            streams = self._streams(tokens, ids, first, last)
        hf_cache = None if cache is None else cache.for_rows(streams.shape[0], range(first, last))
        if cache is not None and cache.forked and start_at_layer is None:
            cache.ids = ids
        past = _absorbed(hf_cache, first, last)
        batch, new = streams.shape[:2]
        require_plain_positions(attention_mask, position_ids, batch=batch, new=new, past=past)
        self._call = Call(past, streams.shape[1], hf_cache)
        try:
            shared = self._shared_inputs(streams, past, hf_cache, first)
            for index in range(first, last):
                narrow = last_only and index == self.cfg.n_layers - 1
                streams = self._block(index, streams, shared, ids, narrow)
        finally:
            self._call = None
        if last < self.cfg.n_layers:
            return streams
        model = self.hf.model
        logits = self.hf.lm_head(model.norm(model.hc_head(streams[:, -1:] if last_only else streams)))
        require_finite(logits)
        return logits

    def _embedded(self, ids: Tensor) -> Tensor:
        """Embed, then copy into every stream."""
        embedded = self.hook_embed(self.hf.model.embed_tokens(ids))
        return embedded.unsqueeze(2).expand(-1, -1, self.cfg.n_streams, -1).contiguous()

    def _streams(self, x: Any, ids: Tensor | None, first: int, last: int) -> Tensor:
        shape = (self.cfg.n_streams, self.cfg.d_model)
        if not isinstance(x, Tensor) or x.ndim != 4 or tuple(x.shape[2:]) != shape:
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise PhaselensError(
                f"start_at_layer needs residual streams [batch, pos, {shape[0]}, {shape[1]}], got {got}"
            )
        hashed = [i for i in range(first, last) if self.hf.config.mlp_layer_types[i] == "hash_moe"]
        if ids is None and hashed:
            raise PhaselensError(
                f"layer {hashed[0]} routes by token id; give token_ids= besides the residual streams"
            )
        # Hooks may edit in place; the caller's tensor stays as it is.
        return x.clone()

    def _shared_inputs(self, streams: Tensor, past: int, hf_cache: Any, first: int) -> dict[str, Any]:
        """Form what every layer's attention gets: positions, rotary tables, the window mask, the cache."""
        batch, new = streams.shape[:2]
        positions = torch.arange(past, past + new, device=streams.device)[None]
        rotary = self.hf.model.rotary_emb
        like = streams[:, :, 0]
        tables = {
            kind: rotary(like, position_ids=positions, layer_type=kind) for kind in plain(rotary).layer_types
        }
        keys = None if hf_cache is None else hf_cache.layers[first].keys
        held = keys.shape[-2] if past and keys is not None else 0
        at = torch.arange(past - held, past + new, device=streams.device)
        readable = (at <= positions[0, :, None]) & (at > positions[0, :, None] - self.cfg.exact_window)
        mask = streams.new_zeros(readable.shape).masked_fill(~readable, -torch.inf)
        return {
            "position_embeddings": tables,
            "position_ids": positions,
            "attention_mask": mask.expand(batch, 1, -1, -1),
            _CACHE_ARGUMENT: hf_cache,
        }

    def _block(
        self, index: int, x: Tensor, shared: dict[str, Any], ids: Tensor | None, narrow: bool
    ) -> Tensor:
        """One decoder layer around the mHC streams, as in the class's own forward."""
        layer, sites = self.layers[index], self.blocks[index]
        x = sites.hook_resid_pre(x)
        post, comb, collapsed = layer.attn_hc(x)
        out = layer.self_attn(layer.input_layernorm(collapsed), **shared)[0]
        out = sites.hook_attn_out(out)
        if narrow:
            post, comb, out, x = post[:, -1:], comb[:, -1:], out[:, -1:], x[:, -1:]
            ids = None if ids is None else ids[:, -1:]
        x = sites.hook_resid_mid(_expanded(out, post, comb, x))
        post, comb, collapsed = layer.ffn_hc(x)
        out = layer.mlp(layer.post_attention_layernorm(collapsed), input_ids=ids)
        out = sites.hook_mlp_out(out)
        return sites.hook_resid_post(_expanded(out, post, comb, x))


def hook_deepseek_v4(hf_model: Any, *, name: str | None = None, check: bool = True) -> HookedDeepseekV4:
    """Make a :class:`HookedDeepseekV4` of a Hugging Face ``DeepseekV4ForCausalLM``.

    Parameters
    ----------
    hf_model : DeepseekV4ForCausalLM
        With eager attention. It keeps its weights, which are shared, and stays unhooked.
    name : str or None
        For display; by default the path it was loaded from.
    check : bool
        Verify sites, sums and bit-equal logits on a short prompt at once.

    Raises
    ------
    ConfigError
        For a model this cannot hook, saying what to do instead.
    ModelCheckError
        Saying which promise the model breaks.
    """
    return HookedDeepseekV4(hf_model, name=name, check=check)


def _expanded(out: Tensor, post: Tensor, comb: Tensor, streams: Tensor) -> Tensor:
    """Spread a sublayer's output over the streams and mix them: post ⊗ out + combᵀ streams."""
    dtype = streams.dtype
    mixed = torch.matmul(comb.to(dtype).transpose(-1, -2), streams)
    return post.to(dtype).unsqueeze(-1) * out.unsqueeze(-2) + mixed


def _absorbed(hf_cache: Any, first: int, last: int) -> int:
    """Tokens that the layers about to run have absorbed."""
    lengths = (
        set() if hf_cache is None else {int(hf_cache.layers[i].get_seq_length()) for i in range(first, last)}
    )
    if len(lengths) > 1:
        raise PhaselensError(
            f"layers {first} to {last - 1} of this cache have absorbed {sorted(lengths)} tokens; "
            "run all layers, or fork() the cache before running some"
        )
    return lengths.pop() if lengths else 0
