"""The model as a whole: its sites, its hooks, its copies, what it refuses and what makes two models the same."""

import json
import subprocess
import sys
import warnings

import pytest
import torch
from transformer_lens import HookedRootModule

from hooks import CompressedTransformer, ModelConfig, PhaselensError, SiteError
from hooks.errors import ModelCheckError
from hooks.sites import SITE_AXES, HookedModel, check_names, site
from hooks.transformer import BlindGapWarning
from tests.hooks.own_models import SMALL, STACKS, VOCAB, build, difference, prompt, shapes_unchecked

pytestmark = pytest.mark.filterwarnings("ignore::hooks.transformer.BlindGapWarning")

Z = "blocks.0.attn.hook_z"


@pytest.fixture(autouse=True)
def _fast_sweeps():
    with shapes_unchecked():
        yield


def test_it_is_a_root_module_and_keeps_the_protocol():
    model = build()
    assert isinstance(model, HookedRootModule)
    assert isinstance(model, HookedModel)
    assert model.cfg == ModelConfig(**SMALL)
    assert model.device == torch.device("cpu")


# --------------------------------------------------------------------------- sites

STREAM = {"hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post"}
ALWAYS = {"attn.hook_q", "attn.hook_rot_q", "attn.hook_attn_scores", "attn.hook_pattern", "attn.hook_z",
          "attn.hook_result"}  # fmt: skip
EXACT = {"attn.hook_k", "attn.hook_rot_k", "attn.hook_v"}
READ = {"attn.hook_entry_k", "attn.hook_entry_v"}


def pooled(branch, *, uniform=False):
    kinds = ["hook_gate", "hook_payload", "hook_pooled", "hook_entry"] + ["hook_gate_logits"] * (not uniform)
    return {f"attn.compressor.{branch}.{kind}" for kind in kinds}


KINDS = [
    ({"attention": "full"}, EXACT),
    ({"attention": "sliding"}, EXACT),
    ({}, EXACT | READ | pooled("key") | pooled("value")),
    ({"gate": "uniform"}, EXACT | READ | pooled("key", uniform=True) | pooled("value", uniform=True)),
    ({"tied_kv": True}, EXACT | READ | pooled("key")),
    ({"exact_window": 0}, READ | pooled("key") | pooled("value")),
    ({"exact_window": 0, "tail": "open"}, EXACT | READ | pooled("key") | pooled("value")),
]


@pytest.mark.parametrize(("fields", "some"), KINDS, ids=[str(fields) for fields, _ in KINDS])
@pytest.mark.parametrize("d_mlp", [10, 0])
def test_the_sites_of_each_kind_of_layer(fields, some, d_mlp):
    model = build(n_layers=1, d_mlp=d_mlp, **fields)
    expected = (STREAM | ALWAYS | some) - (set() if d_mlp else {"hook_mlp_out"})
    assert set(model.site_names()) == {"hook_embed"} | {f"blocks.0.{kind}" for kind in expected}
    assert set(model.site_names()) == set(model.hook_dict)
    _, seen = model.run_with_cache(prompt(9))
    assert set(seen) == set(model.site_names())
    assert {site(name).kind for name in seen} <= set(SITE_AXES)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("length", [1, 2, 15])
def test_every_site_has_the_axes_of_the_table(stack, length):
    model = build(STACKS[stack])
    _, seen = model.run_with_cache(prompt(length, batch=2))
    assert set(seen) == set(model.site_names())
    for name, value in seen.items():
        parsed = site(name)
        layer = 0 if parsed.layer is None else parsed.layer
        kind, geometry = model.cfg.layer(layer), model.geometry(layer)
        entries = length // geometry.stride if geometry else 0
        sizes = {
            "batch": 2, "pos": length, "d_model": 12, "head": 4, "kv_head": 2, "d_head": 6, "entry": entries,
            "offset": kind.window, "key": length + entries + kind.sink,
        }  # fmt: skip
        expected = [sizes[axis] for axis in parsed.axes]
        if parsed.kind.endswith(("hook_gate", "hook_gate_logits")) and kind.gate != "vector":
            expected[-1] = 1
        assert list(value.shape) == expected, name
        assert value.dtype == torch.float64


def test_parsed_names():
    parsed = site("blocks.12.attn.compressor.key.hook_gate")
    assert (parsed.layer, parsed.kind) == (12, "attn.compressor.key.hook_gate")
    assert parsed.axes == ("batch", "entry", "offset", "kv_head", "d_head")
    assert parsed.axis("offset") == 2
    assert site("hook_embed").layer is None
    with pytest.raises(SiteError, match=r"has no axis 'pos'; valid: .*batch"):
        parsed.axis("pos")
    for name in (
        "hook_z",
        "blocks.1.hook_z",
        "blocks.x.attn.hook_z",
        "blocks.1.attn.hook_zz",
        "",
        "blocks.1.",
    ):
        with pytest.raises(SiteError, match="is not a hook site; valid:"):
            site(name)


def test_names_are_checked_against_those_that_fire():
    valid = build(attention=("sliding", "chunked")).site_names()
    check_names(valid, valid)
    check_names([], valid)
    with pytest.raises(SiteError, match=r"layer 0 lacks it.*valid:.*blocks\.0\.attn"):
        check_names([Z, "blocks.0.attn.compressor.key.hook_gate"], valid)


# --------------------------------------------------------------------------- hooks

WRONG = [
    ("blocks.0.attn.hook_zz", "hook_z"),  # misspelt
    ("blocks.0.hook_z", "blocks.0.attn.hook_z"),  # another place
    ("blocks.2.attn.hook_z", "hook_z"),  # no such layer
    ("blocks.0.attn.compressor.key.hook_gate", "layer 0 lacks it"),  # a window-only layer
    ("blocks.0.attn.hook_entry_k", "layer 0 lacks it"),
    ("blocks.1.attn.compressor.value.hook_gate", "layer 1 lacks it"),  # tied
    ("blocks.1.attn.indexer.hook_scores", "layer 1 lacks it"),
    ("blocks.1.attn.compressor.key.hook_gates", "hook_gate"),
]


@pytest.mark.parametrize(("name", "says"), WRONG)
def test_hooks_that_cannot_fire_raise_in_every_way_to_set_them(name, says):
    model, tokens = build(attention=("sliding", "chunked"), tied_kv=True), prompt(5)

    def edit(x, hook):
        raise AssertionError("nothing may run")

    with pytest.raises(SiteError, match=says) as caught:
        model.run_with_hooks(tokens, fwd_hooks=[(Z, lambda x, hook: None), (name, edit)])
    assert "\n" not in str(caught.value)
    with pytest.raises(SiteError, match=says):
        model.run_with_cache(tokens, name)
    with pytest.raises(SiteError, match=says):
        model.run_with_cache(tokens, [Z, name])
    with pytest.raises(SiteError, match=says), model.hooks(fwd_hooks=[(name, edit)]):
        pass
    with pytest.raises(SiteError, match=says):
        model.run_with_hooks(tokens, bwd_hooks=[(name, edit)])
    assert not any(point.fwd_hooks or point.bwd_hooks for point in model.hook_dict.values())


def test_a_hook_that_no_call_runs_through_raises_at_the_end():
    model, tokens = build(), prompt(5)
    with (
        pytest.raises(SiteError, match=r"blocks\.0\.attn\.hook_z' never fired.*fired: none"),
        model.hooks(fwd_hooks=[(Z, lambda x, hook: None)]),
    ):
        pass
    stream = model(tokens, stop_at_layer=1)
    with pytest.raises(SiteError, match="never fired"):
        model.run_with_hooks(stream, fwd_hooks=[(Z, lambda x, hook: None)], start_at_layer=1)
    with model.hooks(fwd_hooks=[(Z, lambda x, hook: None)]):  # any one call is enough
        model(stream, start_at_layer=1)
        model(tokens)


def test_no_entries_is_not_never_firing():
    model = build()
    fired = []
    name = "blocks.0.attn.compressor.key.hook_gate"
    model.run_with_hooks(prompt(2), fwd_hooks=[(name, lambda x, hook: fired.append(tuple(x.shape)))])
    assert fired == [(1, 0, 4, 2, 1)]


def test_names_may_be_chosen_by_a_predicate():
    model, fired = build(), []
    ends = lambda name: name.endswith("hook_z")  # noqa: E731
    model.run_with_hooks(prompt(3), fwd_hooks=[(ends, lambda x, hook: fired.append(hook.name))])
    assert fired == [Z, "blocks.1.attn.hook_z"]
    with pytest.raises(SiteError, match="matches no site"):
        model.run_with_hooks(prompt(3), fwd_hooks=[(lambda name: False, lambda x, hook: None)])
    assert set(model.run_with_cache(prompt(3), ends)[1]) == set(fired)
    with pytest.raises(SiteError, match="matches no site"):
        model.run_with_cache(prompt(3), lambda name: False)


class Boom(Exception):
    pass


def boom(x, hook):
    raise Boom


@pytest.mark.parametrize("how", ["run_with_hooks", "hooks", "body", "nested", "model error"])
def test_no_hook_outlives_its_context_exceptions_included(how):
    model, tokens = build(), prompt(6)
    clean = model(tokens)
    zero = (Z, lambda x, hook: torch.zeros_like(x))
    with pytest.raises((Boom, PhaselensError)):
        if how == "run_with_hooks":
            model.run_with_hooks(tokens, fwd_hooks=[zero, ("blocks.1.attn.hook_z", boom)])
        elif how == "hooks":
            with model.hooks(fwd_hooks=[zero, ("blocks.1.attn.hook_z", boom)]):
                model(tokens)
        elif how == "body":
            with model.hooks(fwd_hooks=[zero]):
                model(tokens)
                raise Boom
        elif how == "nested":
            with model.hooks(fwd_hooks=[zero]):
                model.run_with_cache(tokens, Z)
                model.run_with_hooks(tokens, fwd_hooks=[(Z, boom)])
        else:
            model.run_with_hooks([[VOCAB]], fwd_hooks=[zero])
    assert not any(point.fwd_hooks or point.bwd_hooks for point in model.hook_dict.values())
    assert torch.equal(model(tokens), clean)


def test_an_inner_context_leaves_the_outer_one_in_place():
    model, tokens = build(), prompt(6)
    clean = model(tokens)
    double = (Z, lambda x, hook: 2 * x)
    once = model.run_with_hooks(tokens, fwd_hooks=[double])
    with model.hooks(fwd_hooks=[double]):
        with model.hooks(fwd_hooks=[double]):
            twice = model(tokens)
        assert torch.equal(model(tokens), once)
        logits, seen = model.run_with_cache(tokens, Z)  # sees the edit
        assert torch.equal(logits, once)
    assert torch.equal(twice, model.run_with_hooks(tokens, fwd_hooks=[(Z, lambda x, hook: 4 * x)]))
    assert difference(seen[Z], 2 * model.run_with_cache(tokens, Z)[1][Z]) == 0
    assert torch.equal(model(tokens), clean)


def test_a_hook_may_edit_in_place_or_return_or_only_look():
    model, tokens = build(), prompt(6)

    def in_place(x, hook):
        x[:, 2] = 0

    def returned(x, hook):
        x = x.clone()
        x[:, 2] = 0
        return x

    with torch.no_grad():
        clean = model(tokens)
        edited = model.run_with_hooks(tokens, fwd_hooks=[(Z, returned)])
        assert torch.equal(model.run_with_hooks(tokens, fwd_hooks=[(Z, in_place)]), edited)
        assert torch.equal(model.run_with_hooks(tokens, fwd_hooks=[(Z, lambda x, hook: None)]), clean)
    assert not torch.equal(clean, edited)


def test_backward_hooks_see_gradients():
    model, seen = build(), {}
    with model.hooks(bwd_hooks=[(Z, lambda gradient, hook: seen.update(g=gradient))]):
        model(prompt(6))[0, -1, 3].backward()
    assert seen["g"].shape == (1, 6, 4, 6)
    assert seen["g"].abs().max() > 0
    assert not any(point.bwd_hooks for point in model.hook_dict.values())


# --------------------------------------------------------------------------- run_with_cache


def test_activations_are_copies():
    model, tokens, live = build(), prompt(6), {}
    names = model.site_names()
    with (
        torch.no_grad(),
        model.hooks(fwd_hooks=[(name, lambda x, hook: live.__setitem__(hook.name, x)) for name in names]),
    ):
        _, seen = model.run_with_cache(tokens)
    before = {name: value.clone() for name, value in seen.items()}
    for tensor in live.values():
        tensor.fill_(123.0)
    assert all(torch.equal(seen[name], before[name]) for name in names)
    pointers = {value.data_ptr() for value in seen.values() if value.numel()}
    assert len(pointers) == sum(1 for value in seen.values() if value.numel()), "no two share memory"
    assert not any(value.requires_grad for value in seen.values())


def test_an_edit_in_place_by_a_later_hook_does_not_reach_earlier_copies():
    model, tokens = build(), prompt(6)
    name = "blocks.0.hook_resid_post"
    with torch.no_grad():
        clean = model.run_with_cache(tokens, name)[1][name]

        def zero(x, hook):
            x.zero_()

        with model.hooks(fwd_hooks=[("blocks.1.hook_resid_pre", zero)]):  # the same tensor, one site later
            _, seen = model.run_with_cache(tokens, [name, "blocks.1.hook_resid_mid"])
    assert torch.equal(seen[name], clean)


def test_one_name_several_names_or_a_predicate():
    model, tokens = build(), prompt(6)
    everything = model.run_with_cache(tokens)[1]
    for chosen, names in (
        (Z, {Z}),
        ([Z, "hook_embed"], {Z, "hook_embed"}),
        (lambda name: "resid" in name, {name for name in everything if "resid" in name}),
    ):
        logits, seen = model.run_with_cache(tokens, chosen)
        assert set(seen) == names
        assert all(difference(seen[name], everything[name]) <= 1e-12 for name in names)
        assert difference(logits, model(tokens)) <= 1e-12


def test_without_a_filter_whatever_fires_is_kept():
    model, tokens = build(), prompt(6)
    stream, seen = model.run_with_cache(tokens, stop_at_layer=1)
    assert set(seen) == {name for name in model.site_names() if "blocks.1" not in name}
    assert set(model.run_with_cache(stream, start_at_layer=1)[1]) == set(model.site_names()) - set(seen)
    with pytest.raises(SiteError, match=r"blocks\.1\.attn\.hook_z' never fired"):
        model.run_with_cache(tokens, [Z, "blocks.1.attn.hook_z"], stop_at_layer=1)


def test_positions_can_be_picked():
    model, tokens = build(), prompt(9)
    names = [Z, "blocks.0.attn.hook_pattern", "blocks.0.attn.compressor.key.hook_gate"]
    whole = model.run_with_cache(tokens, names)[1]
    for positions, where in ((-1, slice(8, 9)), (3, slice(3, 4)), (slice(2, 5), slice(2, 5))):
        seen = model.run_with_cache(tokens, names, positions=positions)[1]
        assert torch.equal(seen[names[0]], whole[names[0]][:, where])
        assert torch.equal(seen[names[1]], whole[names[1]][:, :, where])
        assert torch.equal(seen[names[2]], whole[names[2]])  # has no positions


# --------------------------------------------------------------------------- parts of a pass


@pytest.mark.parametrize("stack", STACKS)
def test_a_pass_can_be_cut_between_layers(stack):
    model, tokens = build(STACKS[stack]), prompt(11, batch=2)
    whole = model(tokens)
    for cut in range(model.cfg.n_layers + 1):
        stream = model(tokens, stop_at_layer=cut)
        if cut < model.cfg.n_layers:
            name = f"blocks.{cut}.hook_resid_pre"
            assert torch.equal(stream, model.run_with_cache(tokens, name)[1][name])
            assert difference(model(stream, start_at_layer=cut), whole) <= 1e-12
        else:
            assert difference(stream, whole) <= 1e-12
    cache = model.start_cache(2)
    for a, b in ((0, 4), (4, 11)):
        stream = model(tokens[:, a:b], cache, stop_at_layer=1)
        logits = model(stream, cache, start_at_layer=1)
        assert difference(logits, whole[:, a:b]) <= 1e-10


@pytest.mark.parametrize("stack", STACKS)
def test_the_last_position_alone_is_the_last_of_all(stack):
    model, tokens = build(STACKS[stack]), prompt(13, batch=2)
    for length in (1, 5, 12, 13):
        last = model(tokens[:, :length], last_only=True)
        assert last.shape == (2, 1, VOCAB)
        assert difference(last, model(tokens[:, :length])[:, -1:]) <= 1e-10
    cache = model.start_cache(2)
    model(tokens[:, :6], cache, last_only=True)
    assert difference(model(tokens[:, 6:], cache), model(tokens)[:, 6:]) <= 1e-10


@pytest.mark.parametrize(("first", "last"), [(-1, None), (0, 3), (2, 1), (3, None)])
def test_layers_that_do_not_exist(first, last):
    stream = torch.zeros(1, 4, 12, dtype=torch.float64)
    with pytest.raises(PhaselensError, match="valid: 0 to 2"):
        build()(stream, start_at_layer=first, stop_at_layer=last)


# --------------------------------------------------------------------------- bad input

BAD_TOKENS = {
    "ragged": ([[1, 2, 3], [4, 5]], "ragged"),
    "no tokens": (torch.zeros(1, 0, dtype=torch.long), "non-empty"),
    "no rows": (torch.zeros(0, 4, dtype=torch.long), "non-empty"),
    "an empty list": ([[]], "non-empty"),
    "too large": (torch.tensor([[0, VOCAB]]), f"token id {VOCAB} is outside the vocabulary; valid: 0 to {VOCAB - 1}"),
    "negative": (torch.tensor([[0, -1]]), "token id -1"),
    "booleans": (torch.ones(1, 4, dtype=torch.bool), "integer"),
    "fractions": (torch.zeros(1, 4), "integer"),
    "words": ([["a", "b"]], "not numbers"),
    "nothing": (None, "not numbers"),
    "three axes": (torch.zeros(1, 2, 3, dtype=torch.long), r"shape \[1, 2, 3\]"),
}  # fmt: skip


@pytest.mark.parametrize(("tokens", "says"), BAD_TOKENS.values(), ids=BAD_TOKENS)
@pytest.mark.parametrize("fresh", [False, True])
def test_tokens_that_cannot_be(tokens, says, fresh):
    model = CompressedTransformer(ModelConfig(**SMALL)) if fresh else build()
    with pytest.raises(PhaselensError, match=says) as caught:
        model(tokens)
    assert "\n" not in str(caught.value)


def test_a_residual_stream_is_not_tokens_and_tokens_are_no_stream():
    model = build()
    with pytest.raises(PhaselensError, match="residual stream needs start_at_layer"):
        model(torch.zeros(1, 4, 12, dtype=torch.float64))
    with pytest.raises(PhaselensError, match=r"residual stream \[batch, pos, 12\]"):
        model(prompt(4), start_at_layer=1)
    with pytest.raises(PhaselensError, match=r"residual stream \[batch, pos, 12\]"):
        model(torch.zeros(1, 4, 8, dtype=torch.float64), start_at_layer=1)


@pytest.mark.parametrize(
    "tokens", [[[1, 2, 3]], torch.tensor([1, 2, 3]), torch.tensor([[1, 2, 3]], dtype=torch.uint8)]
)
def test_lists_single_prompts_and_small_integers_are_tokens(tokens):
    model = build()
    assert torch.equal(model(tokens), model(torch.tensor([[1, 2, 3]])))


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_raise(value, fresh):
    model = CompressedTransformer(ModelConfig(**SMALL)) if fresh else build()

    def spoil(x, hook):
        x = x.clone()
        x[0, 2] = value
        return x

    with pytest.raises(ModelCheckError, match=r"logits are NaN or infinite, first at .* \[0, 2, 0\]"):
        model.run_with_hooks(prompt(5), fwd_hooks=[("blocks.1.hook_resid_post", spoil)])


@pytest.mark.parametrize(
    "name", ["W_E", "blocks.1.attn.W_O", "blocks.0.attn.compressor.key.W_gate", "ln_final.weight"]
)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_weight_that_is_not_finite_is_named(name, value):
    model = build()
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = value
    with pytest.raises(ModelCheckError, match=f"weight {name} holds NaN or infinite"):
        model.check()
    with pytest.raises(ModelCheckError, match=name):
        CompressedTransformer(model.cfg, weights=dict(model.state_dict()))


def test_the_check_finds_gates_and_heads_that_do_not_add_up(monkeypatch):
    from hooks.compressor import Branch

    model, gate = build(), Branch.gate
    monkeypatch.setattr(Branch, "gate", lambda self, tokens: gate(self, tokens).mul(1.1))
    model.check()  # the hook sees gates before that
    monkeypatch.setattr(Branch, "gate", lambda self, tokens: self.hook_gate(gate(self, tokens) * 1.1))
    with pytest.raises(
        ModelCheckError, match=r"blocks\.0\.attn\.compressor\.key\.hook_gate: gates .* by 0\.1"
    ):
        model.check()


# --------------------------------------------------------------------------- the same model


def test_weights_depend_on_the_seed_alone_and_not_on_global_generators():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = CompressedTransformer(ModelConfig(**SMALL))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    other = CompressedTransformer(ModelConfig(**SMALL))
    assert one.content_hash() == other.content_hash()
    assert CompressedTransformer(ModelConfig(**SMALL, seed=1)).content_hash() != one.content_hash()
    stds = {"gate_init_std": (0.02, 0.5)}
    gates = [
        b.attn.compressor.key.W_gate.detach()
        for b in CompressedTransformer(ModelConfig(**SMALL, **stds)).blocks
    ]
    assert [float(gate.std()) for gate in gates] == pytest.approx([0.02, 0.5], rel=0.3)


def test_the_hash_knows_every_weight_and_the_configuration():
    model = build()
    first = model.content_hash()
    assert len(first) == 64
    assert build().content_hash() == first
    model(prompt(5))
    model.name, model.task = "another", {"task": "recall"}
    assert model.content_hash() == first
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            flat = parameter.view(-1)
            before = flat[-1].clone()
            flat[-1] += 1e-9
            assert model.content_hash() != first, name
            flat[-1] = before
    assert model.content_hash() == first
    renamed = CompressedTransformer(model.cfg.replace(rope_base=2e4), weights=dict(model.state_dict()))
    assert renamed.content_hash() != first
    assert build().float().content_hash() != first


@pytest.mark.slow
def test_the_hash_is_the_same_in_another_process():
    code = (
        "import json, hooks, warnings; "
        f"print(hooks.CompressedTransformer(hooks.ModelConfig(**json.loads('{json.dumps(SMALL)}'))).content_hash())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert out.stdout.strip() == CompressedTransformer(ModelConfig(**SMALL)).content_hash()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_model_keeps_its_precision_throughout(dtype):
    model = build(STACKS["overlapping"]).to(dtype)
    with torch.no_grad():
        logits, seen = model.run_with_cache(prompt(13))
    assert logits.dtype == dtype
    wide = torch.promote_types(dtype, torch.float32)
    for name, value in seen.items():
        formed_wide = name.endswith(("hook_gate", "hook_gate_logits", "hook_attn_scores", "hook_pattern"))
        assert value.dtype == (wide if formed_wide else dtype), name


# --------------------------------------------------------------------------- blind gaps


@pytest.mark.filterwarnings("error::hooks.transformer.BlindGapWarning")
@pytest.mark.parametrize(
    "fields", [{"exact_window": 3}, {"exact_window": 0, "tail": "open"}, {"attention": "full"}]
)
def test_no_warning_where_every_token_can_be_reached(fields):
    CompressedTransformer(ModelConfig(**{**SMALL, **fields}))


@pytest.mark.filterwarnings("default::hooks.transformer.BlindGapWarning")
def test_a_window_smaller_than_the_open_part_is_named():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BlindGapWarning)
        model = CompressedTransformer(ModelConfig(**{**SMALL, "n_layers": 1, "exact_window": 1}))
    message = next(str(w.message) for w in caught if w.category is BlindGapWarning)
    gap = model.geometry(0).unreachable(6, 1)
    assert list(gap) == [4, 5]
    assert "layer 0" in message
    assert "query 6: positions 4 to 5" in message
    # Indeed: the query does not notice them.
    model = build(n_layers=1, exact_window=1)
    tokens = prompt(7)
    changed = tokens.clone()
    changed[0, 4:6] = (changed[0, 4:6] + 1) % VOCAB
    assert torch.equal(model(tokens)[0, 6], model(changed)[0, 6])
