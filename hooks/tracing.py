"""DeepSeek-V4 through nnsight: the sites of :mod:`hooks.deepseek`, reached a second, independent way.

nnsight rewrites the class's own forward so that each of its operations can be read and replaced; the names of
operations are the class's variable names with call counters, so they change with transformers and are checked
when the model is wrapped.

Axis legend: batch B, pos T, head H, entries E, slots W, channels D.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from nnsight import NNsight
from torch import Tensor

from hooks.deepseek.checks import refuse_model, require_finite
from hooks.deepseek.sizes import DeepseekSizes, sizes_of
from hooks.deepseek.taps import FIRING_ORDER, BlockSites
from hooks.errors import ModelCheckError, PhaselensError
from hooks.geometry import ChunkGeometry
from hooks.picks import readable_picks
from hooks.points import fitted
from hooks.running import as_tokens
from hooks.sites import check_names, site

__all__ = ["TracedDeepseekV4", "trace_deepseek_v4"]

_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_LAYER_OPS = ("hidden_states_0",)
_ATTENTION_OPS = ("attention_interface_1",)
_POOL_OPS = {
    # Operations that bind the gate logits and the payload, and the softmax over slots.
    _SPARSE: ("new_gate_0", "new_kv_0", "new_gate_softmax_0", "compressed_1"),
    _HEAVY: ("chunk_gate_1", "chunk_kv_1", "chunk_gate_softmax_0", "compressed_1"),
}

Edit = Callable[[Tensor], Tensor | None]


class TracedDeepseekV4:
    """A Hugging Face ``DeepseekV4ForCausalLM`` whose sites are reached by tracing.

    Parameters
    ----------
    hf_model : DeepseekV4ForCausalLM
        Eager attention. It is left as it is: modules are copied, weights are shared.

    Attributes
    ----------
    envoy : NNsight
        For traces of one's own.
    cfg : DeepseekSizes
        Sizes.

    Raises
    ------
    ConfigError
        For another class, other attention than eager, quantized weights on a CPU.
    ModelCheckError
        If operations that sites rely on are not in the class's code.
    """

    def __init__(self, hf_model: Any) -> None:
        refuse_model(hf_model)
        shared = {id(t): t for t in [*hf_model.parameters(), *hf_model.buffers()]}
        self.envoy: Any = NNsight(copy.deepcopy(hf_model, shared).eval())
        self.cfg: DeepseekSizes = sizes_of(hf_model.config, hf_model.lm_head.weight.device)
        for layer, kind in enumerate(self.cfg.layer_types):
            block = self.envoy.model.layers[layer]
            self._require(f"layers.{layer}", block, _LAYER_OPS)
            self._require(f"layers.{layer}.self_attn", block.self_attn, _ATTENTION_OPS)
            if kind in _POOL_OPS:
                self._require(f"layers.{layer} compressor", block.self_attn.compressor, _POOL_OPS[kind])
            if kind == _SPARSE:
                self._require(
                    f"layers.{layer} indexer", block.self_attn.compressor.indexer, _POOL_OPS[_SPARSE]
                )

    @staticmethod
    def _require(where: str, envoy: Any, operations: Sequence[str]) -> None:
        """Instrument a module's forward and look for operations in it."""
        missing = [name for name in operations if name not in envoy.source.names]
        if missing:
            raise ModelCheckError(
                f"{where}: this version of transformers has no operation {missing[0]!r}; "
                f"there are: {', '.join(envoy.source.names)}"
            )

    def geometry(self, layer: int) -> ChunkGeometry | None:
        """Geometry of a layer's compressor, None in sliding layers."""
        return self.cfg.geometry(layer)

    def site_names(self) -> list[str]:
        """Every site, in order of firing, as in :class:`~hooks.deepseek.HookedDeepseekV4`."""
        names = ["hook_embed"]
        for layer, kind in enumerate(self.cfg.layer_types):
            there = {name for name, _ in BlockSites(kind).named_modules()}
            names += [f"blocks.{layer}.{name}" for name in FIRING_ORDER if name in there]
        return names

    def activations(self, tokens: Any, names: Sequence[str]) -> dict[str, Tensor]:
        """Copy the chosen activations of one run.

        Parameters
        ----------
        tokens : integer tensor [batch, pos]
            What to run.
        names : sequence of str
            Sites.

        Raises
        ------
        SiteError
            For a site this model lacks.
        PhaselensError
            For tokens the hooked model refuses too, or too few to close a window that is asked for.
        """
        kept: dict[str, Tensor] = {}

        def keeping(name: str) -> Edit:
            def keep(tensor: Tensor) -> None:
                kept[name] = tensor.detach()

            return keep

        self.run_with_edits(tokens, {name: keeping(name) for name in names})
        return kept

    @torch.no_grad()
    def run_with_edits(self, tokens: Any, edits: Mapping[str, Edit]) -> Float[Tensor, "batch pos d_vocab"]:
        """Run once under edits and return the logits.

        Parameters
        ----------
        tokens : integer tensor [batch, pos]
            What to run.
        edits : mapping of site to function
            Each is given a copy of the activation and returns what replaces it, in the same shape, or None.

        Raises
        ------
        SiteError, PhaselensError
            As in :meth:`activations`.
        ModelCheckError
            If logits are NaN or infinite.
        """
        check_names(edits, self.site_names())
        edits = {name: partial(fitted, edit, name=name) for name, edit in edits.items()}
        ids = as_tokens(tokens, self.cfg.d_vocab, self.envoy.lm_head.weight.device)
        visits = self._visits(edits, ids.shape[1])
        envoy = self.envoy
        with envoy.trace(input_ids=ids, use_cache=False):
            if "hook_embed" in edits:
                _replace(envoy.model.embed_tokens, "output", edits["hook_embed"])
            for visit in visits:
                visit.run(envoy)
            logits = envoy.lm_head.output.save()
        require_finite(logits)
        return logits

    def _visits(self, edits: Mapping[str, Edit], length: int) -> list[_Visit]:
        """Sort edits by layer, and make sure that what they need happens."""
        visits = []
        for layer, kind in enumerate(self.cfg.layer_types):
            prefix = f"blocks.{layer}."
            mine = {name.removeprefix(prefix): fn for name, fn in edits.items() if name.startswith(prefix)}
            geometry = self.geometry(layer)
            closed = 0 if geometry is None else geometry.n_entries(length)
            needy = [name for name in mine if {"offset", "entry"} & set(site(prefix + name).axes)]
            if needy and not closed:
                assert geometry is not None
                raise PhaselensError(
                    f"{prefix + needy[0]}: {length} tokens close no window of stride {geometry.stride}; "
                    f"trace {geometry.stride} or more"
                )
            if mine:
                visits.append(_Visit(layer, kind, mine, geometry, length, self.cfg.n_heads))
        return visits


class _Visit:
    """The edits of one layer, made in the order in which the class's code runs."""

    def __init__(
        self,
        layer: int,
        kind: str,
        edits: Mapping[str, Edit],
        geometry: ChunkGeometry | None,
        length: int,
        heads: int,
    ) -> None:
        self.layer, self.kind, self.edits = layer, kind, edits
        self.geometry, self.length, self.heads = geometry, length, heads

    def run(self, envoy: Any) -> None:
        """Visit every operation that an edit needs, earliest first."""
        block = envoy.model.layers[self.layer]
        attention = block.self_attn
        self.replace(block, "input", "hook_resid_pre")
        self.replace(attention.q_b_proj, "output", "attn.hook_q", lambda x: x.unflatten(-1, (self.heads, -1)))
        self.replace(attention.kv_proj, "output", "attn.hook_k", lambda x: x.unsqueeze(2))
        if self.geometry is not None:
            self.pool(attention.compressor, self.kind, "attn.compressor.key.")
            if self.kind == _SPARSE:
                indexer = attention.compressor.indexer
                self.pool(indexer, _SPARSE, "attn.indexer.compressor.")
                self.replace(indexer.scorer, "output", "attn.indexer.hook_scores", self.hide_future)
                self.picks(indexer)
        self.reads(attention)
        self.maps(attention)
        heads = self.edits.get("attn.hook_result")
        self.replace(attention.o_a_proj, "input", "attn.hook_z", self.per_head)
        if heads is not None:
            shares = self.shares(attention, self.per_head(attention.o_a_proj.input))
            changed = heads(shares.clone())
            if changed is not None:
                attention.o_b_proj.output = changed.sum(2)
        self.replace(attention.o_b_proj, "output", "hook_attn_out")
        self.replace(block.source.hidden_states_0, "output", "hook_resid_mid")
        self.replace(block.mlp, "output", "hook_mlp_out")
        self.replace(block, "output", "hook_resid_post")

    def replace(
        self, place: Any, what: str, kind: str, shown: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Replace an input or output if there is an edit for it."""
        if kind in self.edits:
            _replace(place, what, self.edits[kind], shown)

    def pool(self, module: Any, kind: str, prefix: str) -> None:
        """Gate logits, gate, payload, pooled entry and stored entry of one compressor."""
        logits_op, payload_op, softmax_op, entry_op = _POOL_OPS[kind]
        source = module.source
        wanted = [prefix + name for name in ("hook_gate_logits", "hook_gate", "hook_payload")]
        if any(name in self.edits for name in wanted):
            # Both tensors are bound early; they are whole when the softmax starts.
            payload = getattr(source, payload_op).output
            logits = getattr(source, logits_op).output
            _ = getattr(source, softmax_op).inputs
            self.fill(wanted[0], logits)
            self.replace(getattr(source, softmax_op), "output", wanted[1], lambda x: x.unsqueeze(3))
            self.fill(wanted[2], payload)
        self.replace(module.kv_norm, "input", prefix + "hook_pooled", lambda x: x.unsqueeze(2))
        self.replace(getattr(source, entry_op), "output", prefix + "hook_entry", lambda x: x.unsqueeze(2))

    def fill(self, name: str, tensor: Tensor) -> None:
        """Edit slots [B, E, W, D], shown as [B, E, W, 1, D], in place."""
        if name in self.edits:
            changed = self.edits[name](tensor.unsqueeze(3).clone())
            if changed is not None:
                tensor.copy_(changed.squeeze(3))

    def picks(self, indexer: Any) -> None:
        """Picks [B, T, k]; what an edit sets is held to the entries that each query can read."""
        kind = "attn.indexer.hook_picks"
        if kind not in self.edits:
            return
        name = f"blocks.{self.layer}.{kind}"

        def readable(picks: Tensor) -> Tensor | None:
            changed = self.edits[kind](picks)
            if changed is None:
                return None
            assert self.geometry is not None
            return readable_picks(changed, self.visible(), self.geometry.n_entries(self.length), name=name)

        _replace(indexer, "output", readable)

    def reads(self, attention: Any) -> None:
        """Edit queries, keys and values as the attention function gets them; entries follow the tokens."""
        parts = {
            "attn.hook_rot_k": (2, slice(0, self.length)),
            "attn.hook_v": (3, slice(0, self.length)),
            "attn.hook_entry_k": (2, slice(self.length, None)),
            "attn.hook_entry_v": (3, slice(self.length, None)),
        }
        if not any(name in self.edits for name in ("attn.hook_rot_q", *parts)):
            return
        call = attention.source.attention_interface_1
        given, named = call.inputs
        args = list(given)
        if "attn.hook_rot_q" in self.edits:
            changed = self.edits["attn.hook_rot_q"](args[1].transpose(1, 2).clone())
            args[1] = args[1] if changed is None else changed.transpose(1, 2)
        for name, (index, part) in parts.items():
            if name in self.edits:
                changed = self.edits[name](args[index][:, :, part].transpose(1, 2).clone())
                if changed is not None:
                    args[index] = args[index].clone()
                    args[index][:, :, part] = changed.transpose(1, 2)
        call.inputs = (tuple(args), named)

    def maps(self, attention: Any) -> None:
        """Scores and pattern [B, H, T, T+E+1] inside the eager attention function."""
        if "attn.hook_attn_scores" in self.edits or "attn.hook_pattern" in self.edits:
            inside = attention.source.attention_interface_1.source
            self.replace(inside.combined_logits_0, "output", "attn.hook_attn_scores", _minus_infinity)
            self.replace(inside.F_softmax_0, "output", "attn.hook_pattern")

    def per_head(self, grouped: Tensor) -> Tensor:
        """Show inputs of the grouped output map [B, T, groups, ·] as [B, T, H, D]."""
        return grouped.flatten(2).unflatten(-1, (self.heads, -1))

    def shares(self, attention: Any, z: Tensor) -> Tensor:
        """Per-head results [B, T, H, d_model] from the two output maps' weights."""
        first, second = attention.o_a_proj._module, attention.o_b_proj._module
        groups = first.n_groups
        inner = first.weight.view(groups, -1, z.shape[2] // groups, z.shape[3])
        outer = second.weight.view(-1, groups, inner.shape[1])
        grouped = z.unflatten(2, (groups, -1))
        return torch.einsum("btghd,grhd,mgr->btghm", grouped, inner, outer).flatten(2, 3)

    def hide_future(self, scores: Tensor) -> Tensor:
        """Index scores [B, T, E] with −inf for entries that are not readable yet."""
        entries = torch.arange(scores.shape[-1], device=scores.device)
        return scores.masked_fill(entries >= self.visible().to(scores.device)[:, None], -torch.inf)

    def visible(self) -> Tensor:
        """Entries [T] that each query sees."""
        assert self.geometry is not None
        return torch.tensor([self.geometry.visible(query) for query in range(self.length)])


def trace_deepseek_v4(hf_model: Any) -> TracedDeepseekV4:
    """Wrap a Hugging Face ``DeepseekV4ForCausalLM`` for tracing; see :class:`TracedDeepseekV4`."""
    return TracedDeepseekV4(hf_model)


def _replace(place: Any, what: str, edit: Edit, shown: Callable[[Tensor], Tensor] | None = None) -> None:
    """Show an input or output to an edit, and put what it returns in its place, in the shape it had."""
    value = getattr(place, what)
    changed = edit((value if shown is None else shown(value)).clone())
    if changed is not None:
        setattr(place, what, changed.reshape(value.shape))


def _minus_infinity(scores: Tensor) -> Tensor:
    """Show what the class masks with the lowest finite number as −inf."""
    return scores.masked_fill(scores <= torch.finfo(scores.dtype).min / 2, -torch.inf)
