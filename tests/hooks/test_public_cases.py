"""Faults reported in public projects, each with the small input it was seen on, held to the right behaviour.

Those of indexers are in ``test_indexer.py``; those of the Hugging Face class in ``test_deepseek_cases.py``.
"""

import gc
import itertools
import weakref

import pytest
import torch

from hooks import CompressedTransformer, ModelConfig, PhaselensError, SiteError
from hooks.errors import ConfigError
from hooks.numerics import rope_tables
from hooks.softmax import Segment, attend
from interp.units import select_units, units
from tests.hooks import reference
from tests.hooks.own_models import build, difference, prompt, shapes_unchecked, stacked

pytestmark = pytest.mark.filterwarnings("ignore::hooks.transformer.BlindGapWarning")

TOY = {"n_layers": 3, "d_model": 32, "n_heads": 4, "n_kv_heads": 2, "d_head": 8, "d_mlp": 32}
FP32 = 1e-4


@pytest.fixture(autouse=True)
def _fast_sweeps():
    with shapes_unchecked(), torch.no_grad():
        yield


def toy(**changes):
    """The toy of the reports: stride 4, exact window 4, float32."""
    return build({**TOY, **changes}).float()


def pattern_of(model, tokens, layer=0, **kwargs):
    name = f"blocks.{layer}.attn.hook_pattern"
    return model.run_with_cache(tokens, name, **kwargs)[1][name]


# --------------------------------------------------------------------------- positions and padding


def test_nnsight_672_and_transformerlens_1609_prompts_of_unequal_length_are_refused():
    model = toy()
    uneven = [prompt(7)[0].tolist(), prompt(10, seed=1)[0].tolist()]
    for rows in (uneven, [torch.tensor(row) for row in uneven]):
        with pytest.raises(PhaselensError, match=r"ragged.*no padding, run prompts of different lengths"):
            model(rows)
    assert [model([row]).shape[1] for row in uneven] == [7, 10]


@pytest.mark.parametrize("fields", [{}, {"window": 6}, {"tail": "open"}, {"exact_window": 0, "sink": True}])
def test_llama_cpp_26471_a_prompt_in_pieces(fields):
    model, tokens = toy(n_layers=2, **fields), prompt(37)
    whole = model(tokens)
    for sizes in ([1] * 37, [3] * 13, [4] * 10, [5] * 8, [16] * 3, [1, 3, 4, 5, 16, 8]):
        cache, ends = model.start_cache(1), list(itertools.accumulate(sizes))
        parts = [model(tokens[:, end - size : end], cache) for size, end in zip(sizes, ends, strict=True)]
        assert difference(torch.cat(parts, dim=1), whole) <= FP32, sizes


@pytest.mark.parametrize(
    "fields", [{}, {"exact_window": 0}, {"exact_window": 0, "sink": True}, {"window": 8}]
)
def test_native_sparse_attention_1_prompts_of_one_to_four_tokens(fields):
    model = toy(n_layers=1, **fields)
    window_only = None
    if fields.get("exact_window", 4) != 0:
        weights = {k: v for k, v in model.state_dict().items() if "compressor" not in k}
        window_only = CompressedTransformer(model.cfg.replace(attention="sliding"), weights=weights).eval()
    entries = []
    for length in (1, 2, 3, 4):
        logits, seen = model.run_with_cache(prompt(length))
        assert torch.isfinite(logits).all()
        for name, value in seen.items():
            assert not value.isnan().any(), name
        entries.append(seen["blocks.0.attn.hook_entry_k"].shape[1])
        if window_only is not None and length < 4:
            assert difference(window_only(prompt(length)), logits) <= FP32
    assert entries == [0, 0, 0, 1]
    assert window_only is None or difference(window_only(prompt(4)), logits) > 1e-3


@pytest.mark.parametrize("k", [1, 512])
def test_native_sparse_attention_1_more_picks_than_entries(k):
    model = toy(n_layers=1, index_topk=k)
    plain = CompressedTransformer(
        model.cfg.replace(index_topk=None),
        weights={name: value for name, value in model.state_dict().items() if "indexer" not in name},
    ).eval()
    for length in range(1, 8):
        assert (
            difference(model(prompt(length)), plain(prompt(length))) <= FP32
        )  # at most one entry is visible


def test_transformers_26869_a_request_alone_and_in_a_batch():
    model, tokens = toy(), prompt(23, batch=5)
    together = model(tokens)
    for row in range(5):
        assert difference(model(tokens[row : row + 1]), together[row : row + 1]) <= FP32
        assert difference(model(tokens[[row, 0]])[:1], together[row : row + 1]) <= FP32


# --------------------------------------------------------------------------- masks


def test_mlx_lm_1189_boolean_and_additive_masks_give_equal_output():
    make = torch.Generator().manual_seed(0)
    q, k, v = torch.randn((3, 1, 16, 4, 8), generator=make)
    entry_k, entry_v = torch.randn((2, 1, 4, 4, 8), generator=make)
    query, token, entry = torch.arange(16)[:, None], torch.arange(16)[None], torch.arange(4)[None]
    near, closed = (token <= query) & (token > query - 4), entry < (query + 1) // 4
    got = attend(q, [Segment(k, v, near), Segment(entry_k, entry_v, closed)])
    scores = torch.cat(
        (q[0].permute(1, 0, 2) @ k[0].permute(1, 2, 0), q[0].permute(1, 0, 2) @ entry_k[0].permute(1, 2, 0)),
        -1,
    )
    additive = torch.zeros(16, 20).masked_fill(~torch.cat((near, closed), -1), -torch.inf)
    pattern = (scores / 8**0.5 + additive).softmax(-1)
    values = torch.cat((v, entry_v), dim=1)[0].permute(1, 0, 2)
    assert difference(got[0], (pattern @ values).permute(1, 0, 2)) <= 1e-5
    assert (pattern[:, 15, 16:].sum(-1) > 0).all()
    # What is appended to a mask for entries is not "hidden" in the model either.
    seen = pattern_of(toy(), prompt(16))
    mass = seen[..., 16:].sum(-1)
    assert (mass[..., 15] > 0).all()
    assert (mass[..., :3] == 0).all(), "no entry is visible yet"


@pytest.mark.parametrize("w", [1, 4, 7])
def test_transformers_39408_a_window_of_w_sees_w_tokens_itself_included(w):
    for fields in ({}, {"attention": "sliding"}):
        model, tokens = toy(exact_window=w, n_layers=1, **fields), prompt(10)
        exact = pattern_of(model, tokens)[0, 0, :, :10] > 0
        assert exact.sum(-1).tolist() == [min(t + 1, w) for t in range(10)]
        assert all(exact[t, t] for t in range(10))
        for rewind in (True, False):
            cache = model.start_cache(1, rewind=rewind)
            for t in range(10):
                now = pattern_of(model, tokens[:, t : t + 1], cache=cache)[0, 0, 0, : t + 1] > 0
                assert torch.equal(now, exact[t, : t + 1])


@pytest.mark.parametrize("sink", [False, True])
def test_flash_linear_attention_831_exact_entries_and_sink_share_one_softmax(sink):
    model, tokens = toy(sink=sink), prompt(16)
    for layer in range(3):
        seen = pattern_of(model, tokens, layer)
        exact, entries, rest = seen[..., :16].sum(-1), seen[..., 16:20].sum(-1), seen[..., 20:].sum(-1)
        assert difference(exact + entries + rest, torch.ones_like(exact)) <= 1e-6
        assert bool((rest > 0).all()) is sink
        assert not sink or float((exact + entries).max()) < 0.999, "what is read alone does not sum to 1"


def test_flash_linear_attention_831_a_sink_of_minus_infinity_is_the_plain_softmax():
    model, tokens = toy(sink=True), prompt(16)
    plain = CompressedTransformer(
        model.cfg.replace(sink=False),
        weights={name: value for name, value in model.state_dict().items() if not name.endswith("sink")},
    ).eval()
    assert difference(model(tokens), plain(tokens)) > 1e-3
    with torch.no_grad():
        for block in model.blocks:
            block.attn.sink.fill_(-torch.inf)
    assert difference(model(tokens), plain(tokens)) <= 1e-5
    assert difference(pattern_of(model, tokens)[..., :20], pattern_of(plain, tokens)) <= 1e-6
    assert pattern_of(model, tokens)[..., 20].abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("watched", [False, True])
@torch.enable_grad()
def test_pytorch_103749_rows_that_read_nothing_are_zero_with_finite_gradients(dtype, watched):
    model, tokens = toy(exact_window=0, n_layers=2).to(dtype), prompt(9)
    kept = {}
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(2)]
    hooks = [(name, lambda x, hook: kept.__setitem__(hook.name, x)) for name in names]
    if watched:
        hooks.append(("blocks.0.attn.hook_pattern", lambda x, hook: kept.__setitem__("pattern", x)))
    logits = model.run_with_hooks(tokens, fwd_hooks=hooks)
    for name in names:
        assert kept[name][:, :3].abs().max() == 0
        assert (kept[name][:, 3:].abs().sum(-1) > 0).all()
    if watched:
        assert kept["pattern"][:, :, :3].abs().max() == 0
    assert torch.isfinite(logits).all()
    for loss in (logits.float().square().sum(), model(tokens[:, :3]).float().square().sum()):
        model.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


# --------------------------------------------------------------------------- rotary positions


@pytest.mark.parametrize(
    "fields",
    [{}, {"exact_window": 6, "sink": True}, {"rope_dims": 4, "rope_base": 500.0}, {"tied_kv": True, "inverse_rope": True},
     {"attention": ("full", "sliding", "chunked"), "rope_base": (1e4, 1e3, 1.6e5)}],
    ids=str,
)  # fmt: skip
def test_transformers_45910_shifting_every_position_by_64_changes_nothing(fields):
    model, tokens, ahead = build({**TOY, **fields}), prompt(15), prompt(64, seed=8)
    model = model.eval()

    def hide(scores, hook):
        scores = scores.clone()
        scores[..., :64] = -torch.inf
        layer = int(hook.name.split(".")[1])
        if model.geometry(layer):
            scores[..., 79 : 79 + 16] = -torch.inf
        return scores

    hooks = [(lambda name: name.endswith("hook_attn_scores"), hide)]
    shifted = model.run_with_hooks(torch.cat((ahead, tokens), dim=1), fwd_hooks=hooks)
    assert difference(shifted[:, 64:], model(tokens)) <= 1e-10
    assert difference(model(torch.cat((ahead, tokens), dim=1))[:, 64:], model(tokens)) > 1e-3


def test_transformers_45910_bases_are_those_of_the_layer_and_entries_sit_at_multiples_of_the_stride():
    model = build(stacked({"rope_base": 10.0}, {"rope_base": 1e3}, {"rope_base": 1e5}))
    _, seen = model.run_with_cache(prompt(17))
    for layer, base in enumerate((10.0, 1e3, 1e5)):
        at, attn = f"blocks.{layer}.attn.", model.blocks[layer].attn
        q = reference.rms(seen[at + "hook_q"][0, 11, 2], attn.q_norm.weight.detach())
        assert difference(seen[at + "hook_rot_q"][0, 11, 2], reference.turned(q, 11, 6, base)) <= 1e-12
        pooled = seen[at + "compressor.key.hook_pooled"][0, 3, 1]
        pooled = reference.rms(pooled, attn.compressor.key.norm.weight.detach())
        expected = reference.turned(pooled, 12, 6, base)
        assert difference(seen[at + "compressor.key.hook_entry"][0, 3, 1], expected) <= 1e-12
        # Rotating keeps lengths: no amplitude of a scaling scheme is applied.
        assert float(seen[at + "hook_rot_q"][0, 11, 2].norm()) == pytest.approx(float(q.norm()), abs=1e-12)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_factor", "yarn", "rope_theta"])
def test_transformers_45910_an_unknown_scaling_key_is_named(key):
    values = ModelConfig(**{**build().cfg.to_dict()}).to_dict()
    with pytest.raises(ConfigError, match=f"unknown configuration key '{key}'"):
        ModelConfig.from_dict({**values, key: 4.0})
    with pytest.raises(TypeError, match=key):
        ModelConfig(**values, **{key: 4.0})


def test_transformers_25681_positions_256_to_262_have_seven_angles_in_bf16():
    cos, sin = rope_tables(torch.arange(256, 263), 8, 1e4, torch.bfloat16)
    assert cos.dtype == torch.float32
    angles = torch.atan2(sin[:, 0], cos[:, 0]).tolist()
    assert angles == pytest.approx(
        [(t + torch.pi) % (2 * torch.pi) - torch.pi for t in range(256, 263)], abs=1e-5
    )
    model = toy(n_layers=1, qk_norm=False).to(torch.bfloat16)
    tokens, name = torch.full((1, 263), 5), "blocks.0.attn.hook_rot_k"
    keys = model.run_with_cache(tokens, name, positions=slice(256, 263))[1][name][0, :, 0].float()
    for i, j in itertools.combinations(range(7), 2):
        assert (keys[i] - keys[j]).abs().max() > 0.05, (i, j)


# --------------------------------------------------------------------------- hooks


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("blocks.0.attn.compressor.key.hook_gate", "layer 0 lacks it.*valid: .*blocks.0.attn.hook_"),
        ("blocks.0.attn.compressor.value.hook_entry", "layer 0 lacks it"),
        ("blocks.1.attn.hook_patern", "valid: blocks.1.attn.hook_pattern"),
        ("blocks.4.attn.hook_z", "valid: "),
    ],
)
def test_transformerlens_1688_ablating_what_is_not_there_names_valid_sites(name, says):
    model = toy(attention=("sliding", "chunked", "chunked"))
    with pytest.raises(SiteError, match=says):
        model.run_with_hooks(prompt(9), fwd_hooks=[(name, lambda x, hook: torch.zeros_like(x))])


def test_transformerlens_1688_head_4_of_4():
    found = units(toy(), "head")
    with pytest.raises(SiteError, match=r"unit '0\.4' does not exist in this model; valid: .*0\.3"):
        select_units(found, ["0.4"])
    assert [unit.label for unit in select_units(found, ["0.3", "2.0"])] == ["0.3", "2.0"]


def test_transformerlens_980_a_kv_head_is_the_query_heads_that_read_it():
    model, tokens = toy(n_layers=1), prompt(13)

    def zero(dim, heads):
        def edit(x, hook):
            x = x.clone()
            x[:, :, heads] = 0
            return x

        return edit

    values = [(f"blocks.0.attn.{name}", zero(2, [1])) for name in ("hook_v", "hook_entry_v")]
    by_value = model.run_with_hooks(tokens, fwd_hooks=values)
    by_heads = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", zero(2, [2, 3]))])
    assert difference(by_value, by_heads) <= 1e-5
    assert difference(by_heads, model(tokens)) > 1e-3
    assert (
        difference(
            by_heads, model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", zero(2, [1, 3]))])
        )
        > 1e-3
    )
    assert [unit.label for unit in units(model, "kv_head")] == ["0.0", "0.1"]


def test_circuit_tracer_105_one_row_at_one_position():
    model, tokens = toy(), prompt(13, batch=3)

    def ablate(z, hook):
        z = z.clone()
        z[1, 0, 1] = 0
        return z

    clean = model(tokens)
    edited = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", ablate)])
    assert torch.equal(edited[[0, 2]], clean[[0, 2]])
    assert not torch.equal(edited[1, 0], clean[1, 0])
    z = {}
    watch = ("blocks.0.hook_attn_out", lambda x, hook: z.__setitem__(len(z), x.clone()))
    model.run_with_hooks(tokens, fwd_hooks=[watch])
    model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", ablate), watch])
    assert torch.equal(z[0][1, 1:], z[1][1, 1:]), "not the whole sequence"
    assert not torch.equal(z[0][1, 0], z[1][1, 0])


def test_thingsvision_44_later_edits_in_place_do_not_reach_kept_activations():
    model, tokens, live = toy(), prompt(9), []
    with torch.no_grad():
        clean = model.run_with_cache(tokens)[1]
        with model.hooks(fwd_hooks=[(lambda name: True, lambda x, hook: live.append(x))]):
            _, seen = model.run_with_cache(tokens)
    for tensor in live:
        tensor.mul_(0).add_(5)
    assert len(live) == len(seen)
    assert all(torch.equal(seen[name], clean[name]) for name in seen)


@pytest.mark.parametrize(
    "fields", [{}, {"sink": True}, {"tail": "open"}, {"exact_window": 0}, {"attention": "full"}]
)
def test_transformers_30652_asking_for_patterns_changes_no_logits(fields):
    tokens = prompt(17, batch=2)
    fresh, wide = CompressedTransformer(toy(**fields).cfg).eval(), build({**TOY, **fields})
    for model, tolerance in ((fresh, 1e-6), (wide, 1e-10)):
        plain = model(tokens)
        for names in (lambda name: name.endswith("hook_pattern"), lambda name: name.endswith("scores"), None):
            assert difference(model.run_with_cache(tokens, names)[0], plain) <= tolerance


def test_transformerlens_746_one_site_of_a_long_prompt_is_all_that_is_kept():
    model, tokens, seen_alive = toy(n_layers=2), prompt(512), []
    name = "blocks.0.attn.hook_z"
    others = [one for one in model.site_names() if one != name]

    def note(x, hook):
        seen_alive.append(weakref.ref(x))

    with torch.no_grad(), model.hooks(fwd_hooks=[(one, note) for one in others]):
        _, kept = model.run_with_cache(tokens, name)
    gc.collect()
    assert set(kept) == {name}
    assert len(seen_alive) == len(others)
    assert [ref() for ref in seen_alive if ref() is not None] == []
    assert kept[name].untyped_storage().nbytes() == kept[name].numel() * 4
    last = model.run_with_cache(tokens, "blocks.0.attn.hook_pattern", positions=-1)[1][
        "blocks.0.attn.hook_pattern"
    ]
    assert last.untyped_storage().nbytes() == 4 * (512 + 128) * 4
