"""Identities that hold for every mix of roles and strides, quantized and not, against a token-by-token reference."""

from __future__ import annotations

import pytest
import torch

from hooks.config import ModelConfig
from hooks.sites import site
from tests.hooks.shared_models import MIXES, brute_force, build, small, tokens

QUICK = ("encoder-decoder", "picks shared over a sliding layer")
EVERY = [
    pytest.param(mix, stored, id=f"{mix}{' stored' * stored}",
                 marks=[pytest.mark.slow] if stored and mix not in QUICK else [])
    for mix in MIXES for stored in (False, True)
]  # fmt: skip
COMPARED = (
    "attn.hook_rot_k", "attn.hook_entry_k", "attn.hook_entry_v", "attn.hook_pattern", "attn.hook_z",
    "compressor.key.hook_gate", "indexer.hook_key", "indexer.hook_scores", "indexer.hook_pool", "indexer.hook_picks",
)  # fmt: skip


def close(got, expected, tolerance=1e-10):
    assert got.shape == expected.shape
    same = got == expected  # equal infinities
    assert float((got - expected).masked_fill(same, 0).abs().max() if got.numel() else 0) <= tolerance


@pytest.mark.parametrize(("mix", "stored"), EVERY)
def test_equals_the_pass_written_out_token_by_token(mix, stored):
    model = build(small(mix, stored=stored))
    ids = tokens(2, 9 if stored else 11)
    with torch.no_grad():
        names = [name for name in model.site_names() if name.endswith(("hook_picks", "hook_pool"))]
        logits, seen = model.run_with_cache(ids, names)
    for row in range(1 if stored else 2):
        expected = brute_force(model, ids[row])
        close(logits[row], expected["logits"])
        for kind, wanted in (("picks", expected["picks"]), ("pool", expected["pools"])):
            for layer, by_query in wanted.items():
                got = seen[f"blocks.{layer}.attn.indexer.hook_{kind}"][row]
                assert [[j for j in query if j >= 0] for query in got.tolist()] == by_query
    assert len([name for name in seen if name.endswith("hook_picks")]) == len(expected["picks"])


@pytest.mark.parametrize(("mix", "stored"), EVERY)
def test_no_split_changes_anything(mix, stored):
    """Identity 1: two calls at every cut, and token by token; logits, entries, picks and hook values."""
    model = build(small(mix, stored=stored))
    names = [name for name in model.site_names() if name.endswith(COMPARED)]
    length = 3 * max(model.cfg.strides) + 1
    ids = tokens(1, length, seed=3)
    with torch.no_grad():
        logits, whole = model.run_with_cache(ids, names)
        two_calls = range(1, length) if not stored else (1, length // 2)
        cuts = [*([cut] for cut in two_calls), list(range(1, length))]
        for number, cut in enumerate(cuts):
            cache, parts = model.start_cache(1, rewind=number % 2 == 0), []
            for a, b in zip([0, *cut], [*cut, length], strict=True):
                parts.append(model.run_with_cache(ids[:, a:b], names, cache=cache))
            close(torch.cat([part[0] for part in parts], dim=1), logits)
            for name in names:
                axes = site(name).axes
                if "key" in axes:
                    last = parts[-1][1][name]
                    close(last, whole[name][:, :, -last.shape[2] :])
                else:
                    along = (
                        axes.index("entry") if "entry" in axes and "pos" not in axes else axes.index("pos")
                    )
                    values = [part[1][name] for part in parts]
                    if "scores" in name:  # as many columns as entries so far
                        values = [torch.nn.functional.pad(v, (0, whole[name].shape[-1] - v.shape[-1]), value=-torch.inf)
                                  for v in values]  # fmt: skip
                    close(torch.cat(values, dim=along).double(), whole[name].double())


@pytest.mark.parametrize(("mix", "stored"), EVERY)
def test_a_token_moves_nothing_before_it(mix, stored):
    """Identity 3, first half."""
    model = build(small(mix, stored=stored))
    ids = tokens(1, 13)
    with torch.no_grad():
        clean = model(ids)
        for j in (0, 5, 12):
            changed = ids.clone()
            changed[0, j] = (changed[0, j] + 1) % 19
            moved = (model(changed) - clean).abs().amax((0, 2))
            assert float(moved[:j].max() if j else 0) == 0
            assert float(moved[j]) > 1e-6


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("roles", [("full", "reuse", "reindex"), ("full", "full", "reuse")])
def test_exactly_the_positions_that_can_read_a_token_move(stride, roles):
    """Identity 3, second half: exact window 1 and W = S."""
    cfg = small(
        "all entries, stride 1", roles=roles, window=stride, stride=stride, exact_window=1, gate="vector",
        index_topk=99, index_heads=2, index_dim=6,
    )  # fmt: skip
    model = build(cfg)
    ids = tokens(1, 11)
    with torch.no_grad():
        clean = model(ids)
        for j in range(11):
            changed = ids.clone()
            changed[0, j] = (changed[0, j] + 1) % 19
            moved = (model(changed) - clean).abs().amax((0, 2)) > 1e-9
            closes = (j // stride + 1) * stride - 1
            assert moved.nonzero().flatten().tolist() == sorted({j, *range(closes, 11)})


@pytest.mark.parametrize(("mix", "stored"), [p for p in EVERY if "index_topk" in MIXES[p.values[0]]])
def test_picking_as_many_as_are_visible_is_attending_all(mix, stored):
    """Identity 9, first half."""
    picking = build(small(mix, stored=stored, index_topk=13, index_pool=None))
    roles = tuple(picking.cfg.layer(i).role.replace("reindex", "reuse") for i in range(picking.cfg.n_layers))
    plain = {"index_topk": None, "index_heads": None, "index_dim": None, "index_precision": None}
    everything = build_like(picking.cfg.replace(roles=roles, **plain), picking)
    ids = tokens(2, 13)
    with torch.no_grad():
        close(picking(ids), everything(ids))
        dropping = build_like(small(mix, stored=stored, index_pool=None, index_topk=1), picking)
        assert float((dropping(ids) - everything(ids)).abs().max()) > 1e-3


def build_like(cfg: ModelConfig, other):
    """Build a model with the weights of another that it has too."""
    model = build(cfg)
    theirs = other.state_dict()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(theirs[name])
    return model


@pytest.mark.parametrize("mix", [mix for mix in MIXES if "index_topk" in MIXES[mix]])
def test_scaling_scores_or_permuting_index_heads_changes_nothing(mix):
    """Identity 9, second half."""
    ids = tokens(2, 13)
    model = build(small(mix))
    with torch.no_grad():
        clean = model(ids)
        for name, p in model.named_parameters():
            if name.endswith("indexer.W_weight"):
                p.mul_(3.7)
        close(model(ids), clean)
        for name, p in model.named_parameters():
            if name.endswith("indexer.W_weight"):
                p.copy_(p[:, [2, 0, 1]])
            elif name.endswith("indexer.W_Q"):
                p.copy_(p[[2, 0, 1]])
        close(model(ids), clean)
        for name, p in model.named_parameters():
            if name.endswith("indexer.W_weight"):
                p.neg_()
        assert float((model(ids) - clean).abs().max()) > 1e-3  # the picks do matter


@pytest.mark.parametrize(("mix", "stored"), EVERY)
def test_gates(mix, stored):
    """Identity 10: sums; constant logits; one open offset; an open window; what a token reaches."""
    model = build(small(mix, stored=stored))
    ids = tokens(1, 13)
    with torch.no_grad():
        _, seen = model.run_with_cache(ids)
        gates = [name for name in seen if name.endswith("hook_gate")]
        owners = [
            i for i in range(model.cfg.n_layers) if model.cfg.layer(i).role == "full" and model.geometry(i)
        ]
        assert {int(name.split(".")[1]) for name in gates} == set(owners)
        for name in gates:
            close(seen[name].sum(2), torch.ones_like(seen[name].sum(2)))
            layer = int(name.split(".")[1])
            geometry = model.geometry(layer)
            assert seen[name].shape[1] == 13 // geometry.stride  # an open window adds nothing
            stem = name.removesuffix("hook_gate")
            if model.cfg.layer(layer).gate == "uniform":
                continue
            for value, offset in ((torch.zeros_like, None), (torch.zeros_like, geometry.window - 1)):

                def constant(logits, hook, value=value, offset=offset):
                    out = value(logits)
                    if offset is not None:
                        out[:, :, :offset] = -torch.inf
                    return out

                sites = [stem + "hook_payload", stem + "hook_pooled"]
                with model.hooks(fwd_hooks=[(stem + "hook_gate_logits", constant)]):
                    _, edited = model.run_with_cache(ids, sites)
                payload, pooled = (edited[s][:, 2:] for s in sites)  # windows that are not clipped
                close(pooled, payload.mean(2) if offset is None else payload[:, :, -1])


@pytest.mark.parametrize("mix", MIXES)
def test_a_token_reaches_exactly_its_entries(mix):
    """Identity 10, last part, in every owner and every layer that reads it, one owner at a time."""
    model = build(small(mix))
    for layer in range(model.cfg.n_layers):
        kind = model.cfg.layer(layer)
        if kind.owner is None:
            continue
        stride, window = kind.stride, kind.window
        names = [f"blocks.{i}.attn.hook_entry_k" for i in (kind.owner, layer)]
        x = torch.randn(
            1, 12, model.cfg.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        for j in (0, 7):
            changed = x.clone()
            changed[0, j] += 1.0
            runs = []
            for stream in (x, changed):
                with torch.no_grad():
                    runs.append(model.run_with_cache(stream, names, start_at_layer=kind.owner)[1])
            for name in names:
                moved = (runs[0][name] - runs[1][name]).abs().amax((0, 2, 3)) > 0
                reached = [
                    e for e in range(12 // stride) if (e + 1) * stride - window <= j < (e + 1) * stride
                ]
                assert moved.nonzero().flatten().tolist() == reached


@pytest.mark.parametrize("exact_window", [0, 3])
def test_without_compression_it_is_a_plain_transformer_over_shared_keys(exact_window):
    """Ratio 1, no quantization, picks ≥ visible: masked matrix attention over one key per token and owner."""
    cfg = small(
        "encoder-decoder", window=1, stride=1, gate="uniform", index_topk=13, index_pool=None, sink=False,
        exact_window=exact_window, inverse_rope=False, rope_dims=0,
    )  # fmt: skip
    model = build(cfg)
    w = model.state_dict()
    ids = tokens(2, 13)
    causal = torch.ones(13, 13, dtype=torch.bool).tril()

    def norm(x, name):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w[name + ".weight"]

    x, shared = w["W_E"][ids], None
    for layer in range(8):
        p = f"blocks.{layer}.attn."
        h = norm(x, f"blocks.{layer}.ln1")
        if layer in (0, 4):
            shared = norm(h @ w[p + "compressor.key.W_payload"][0, :, 0], p + "compressor.key.norm")
        scores, values = [], []
        q = torch.einsum("btm,hmd->bhtd", h, w[p + "W_Q"])
        if exact_window:
            key = norm(h @ w[p + "W_K"][0], p + "k_norm")
            near = causal & ~torch.ones(13, 13, dtype=torch.bool).tril(-exact_window)
            scores.append((q @ key[:, None].mT / 8**0.5).masked_fill(~near, -torch.inf))
            values.append(key)
        scores.append((q @ shared[:, None].mT / 8**0.5).masked_fill(~causal, -torch.inf))
        values.append(shared)
        z = torch.cat(scores, -1).softmax(-1) @ torch.cat(values, 1)[:, None]
        x = x + torch.einsum("bhtd,hdm->btm", z, w[p + "W_O"])
        n, m = norm(x, f"blocks.{layer}.ln2"), f"blocks.{layer}.mlp."
        x = x + (torch.nn.functional.silu(n @ w[m + "W_gate"]) * (n @ w[m + "W_in"])) @ w[m + "W_out"]
    expected = norm(x, "ln_final") @ w["W_U"]
    with torch.no_grad():
        close(model(ids), expected)
        cache = model.start_cache(2)
        close(torch.cat([model(ids[:, t : t + 1], cache) for t in range(13)], 1), expected)
