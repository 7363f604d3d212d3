"""Gates, payloads and entries: identity 10, what each variant shares, and where entries sit."""

import cmath

import pytest
import torch

from hooks.compressor import window_tokens
from hooks.geometry import ChunkGeometry
from tests.hooks import reference
from tests.hooks.own_models import STACKS, VOCAB, build, difference, prompt, shapes_unchecked

pytestmark = pytest.mark.filterwarnings("ignore::hooks.transformer.BlindGapWarning")


@pytest.fixture(autouse=True)
def _fast_sweeps():
    with shapes_unchecked():
        yield


KEY, VALUE = "blocks.0.attn.compressor.key", "blocks.0.attn.compressor.value"
CHUNKED = {name: fields for name, fields in STACKS.items() if "chunked" in fields.get("attention", "chunked")}


def pooled_under(model, tokens, edit, name=KEY):
    """Gate, payload and pooled entries while an edit sits on the gate logits."""
    kept = {}

    def keep(tensor, hook):
        kept[hook.name.rsplit(".", 1)[-1]] = tensor.clone()

    sites = [f"{name}.{site}" for site in ("hook_gate", "hook_payload", "hook_pooled")]
    model.run_with_hooks(
        tokens, fwd_hooks=[(f"{name}.hook_gate_logits", edit), *((site, keep) for site in sites)]
    )
    return kept["hook_gate"], kept["hook_payload"], kept["hook_pooled"]


@pytest.mark.parametrize("fields", CHUNKED.values(), ids=CHUNKED)
def test_gates_sum_to_one_and_clipped_slots_are_exactly_zero(fields):
    model = build(fields)
    _, seen = model.run_with_cache(prompt(19, batch=2), lambda name: name.endswith("hook_gate"))
    assert seen
    for name, gate in seen.items():
        layer = int(name.split(".")[1])
        geometry = model.geometry(layer)
        assert (gate.sum(2) - 1).abs().max() <= 1e-12
        assert gate.min() >= 0
        for entry in range(gate.shape[1]):
            clipped = geometry.window - len(geometry.covered(entry))
            assert gate[:, entry, :clipped].abs().sum() == 0
            assert (gate[:, entry, clipped:] > 0).all()


@pytest.mark.parametrize("changes", [{}, {"gate": "vector"}, {"window": 6}, {"payload": "shared"}])
@pytest.mark.parametrize("branch", [KEY, VALUE])
def test_constant_gate_logits_give_the_mean(changes, branch):
    model = build(**changes)
    _, payload, pooled = pooled_under(model, prompt(13), lambda x, hook: torch.full_like(x, 0.7), name=branch)
    there = [list(model.geometry(0).covered(j)) for j in range(3)]
    for j, tokens in enumerate(there):
        assert difference(pooled[:, j], payload[:, j, -len(tokens) :].mean(1)) <= 1e-12


@pytest.mark.parametrize("changes", [{}, {"gate": "vector"}, {"window": 6}])
def test_a_bias_of_minus_infinity_but_at_one_offset_gives_that_token_exactly(changes):
    model = build(**changes)
    branch = model.blocks[0].attn.compressor.key
    window, stride = model.geometry(0).window, model.geometry(0).stride
    for offset in range(window):
        with torch.no_grad():
            branch.b_gate.fill_(-torch.inf)
            branch.b_gate[offset] = 0.3
        _, seen = model.run_with_cache(prompt(13), lambda name: name.startswith(KEY))
        gate, pooled = seen[f"{KEY}.hook_gate"], seen[f"{KEY}.hook_pooled"]
        first = int(offset < window - stride)  # its slot is clipped in entry 0, which then pools nothing
        assert gate[:, :first].abs().sum() == pooled[:, :first].abs().sum() == 0
        assert torch.equal(gate[:, first:, offset], torch.ones_like(gate[:, first:, offset]))
        assert torch.equal(pooled[:, first:], seen[f"{KEY}.hook_payload"][:, first:, offset])


def test_uniform_gates_share_equally_and_have_no_logits():
    model = build(gate="uniform", window=6)
    assert not [name for name in model.site_names() if name.endswith("hook_gate_logits")]
    _, seen = model.run_with_cache(prompt(13), lambda name: name.startswith(KEY))
    gate = seen[f"{KEY}.hook_gate"]
    assert gate.shape == (1, 3, 6, 2, 1)
    assert difference(gate[0, 0, :, 0, 0], torch.tensor([0, 0, 0.25, 0.25, 0.25, 0.25]).double()) <= 1e-15
    assert difference(gate[:, 1:], torch.full_like(gate[:, 1:], 1 / 6)) <= 1e-15
    # The payload maps are the offsets' own all the same.
    weight = model.blocks[0].attn.compressor.key.W_payload
    assert weight.shape[0] == 6
    assert (weight[0] - weight[1]).abs().max() > 0.1


@pytest.mark.parametrize("changes", [{}, {"window": 6}, {"window": 8}, {"window": 3, "stride": 1}])
def test_a_token_reaches_exactly_its_entries_and_an_open_window_adds_nothing(changes):
    model = build(n_layers=1, **changes)
    geometry, tokens = model.geometry(0), prompt(14)
    sites = [f"{branch}.hook_entry" for branch in (KEY, VALUE)]
    _, before = model.run_with_cache(tokens, sites)
    assert before[sites[0]].shape[1] == 14 // geometry.stride
    for token in range(14):
        changed = tokens.clone()
        changed[0, token] = (changed[0, token] + 1) % VOCAB
        _, after = model.run_with_cache(changed, sites)
        for name in sites:
            moved = (after[name] - before[name]).abs().amax((0, 2, 3)) > 1e-9
            holds = [token in geometry.covered(j) for j in range(len(moved))]
            assert moved.tolist() == holds, (name, token)
    # What the window that is still open holds changes no entry at all, not even by rounding.
    open_tokens = tokens.clone()
    open_tokens[0, (14 // geometry.stride) * geometry.stride :] = 0
    _, after = model.run_with_cache(open_tokens, sites)
    assert all(torch.equal(after[name], before[name]) for name in sites)


def test_scalar_gates_weigh_all_channels_alike_and_vector_gates_each():
    for gate, width in (("scalar", 1), ("vector", 6)):
        model = build(gate=gate)
        _, seen = model.run_with_cache(prompt(9), lambda name: name.startswith(KEY))
        assert seen[f"{KEY}.hook_gate"].shape == (1, 2, 4, 2, width)
        assert seen[f"{KEY}.hook_gate_logits"].shape == (1, 2, 4, 2, width)
        product = seen[f"{KEY}.hook_gate"] * seen[f"{KEY}.hook_payload"]
        assert difference(product.sum(2), seen[f"{KEY}.hook_pooled"]) <= 1e-12
    assert (seen[f"{KEY}.hook_gate"].std(-1) > 0.01).all()


def same_token_logits(changes, token=5):
    """Gate logits and payloads [offset, kv_head, channel] of a window that holds one token over and over."""
    model = build(n_layers=1, **changes)
    tokens = torch.full((1, 16), token)
    _, seen = model.run_with_cache(tokens, lambda name: name.startswith(KEY))
    bias = model.blocks[0].attn.compressor.key.b_gate
    return seen[f"{KEY}.hook_gate_logits"][0, -1] - (0 if bias is None else bias), seen[
        f"{KEY}.hook_payload"
    ][0, -1]


@pytest.mark.parametrize(
    ("payload", "groups"),
    [
        ("per_offset", [[0], [1], [2], [3], [4], [5], [6], [7]]),
        ("shared", [list(range(8))]),
        ("two_series", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
)
@pytest.mark.parametrize("gate_bias", [True, False])
@pytest.mark.parametrize("gate", ["scalar", "vector"])
def test_which_offsets_share_maps(payload, groups, gate_bias, gate):
    for values in same_token_logits({"payload": payload, "window": 8, "gate_bias": gate_bias, "gate": gate}):
        for i in range(8):
            for j in range(8):
                together = any(i in group and j in group for group in groups)
                close = (values[i] - values[j]).abs().max() < 1e-9
                assert bool(close) is together, (i, j)


def test_biases_are_per_offset_and_shift_the_logits_alone():
    model, tokens = build(payload="shared"), prompt(9)
    _, before = model.run_with_cache(tokens, lambda name: name.startswith(KEY))
    with torch.no_grad():
        model.blocks[0].attn.compressor.key.b_gate[2] += 0.5
    _, after = model.run_with_cache(tokens, lambda name: name.startswith(KEY))
    moved = after[f"{KEY}.hook_gate_logits"] - before[f"{KEY}.hook_gate_logits"]
    assert difference(moved[:, :, 2], torch.full_like(moved[:, :, 2], 0.5)) <= 1e-12
    assert moved[:, :, [0, 1, 3]].abs().max() == 0
    assert torch.equal(after[f"{KEY}.hook_payload"], before[f"{KEY}.hook_payload"])
    assert not any(name.endswith("b_gate") for name, _ in build(gate_bias=False).named_parameters())


def test_tied_values_are_the_finished_keys():
    model, tokens = build(tied_kv=True, gate="vector"), prompt(9)
    assert model.blocks[0].attn.compressor.value is None
    assert not [name for name in model.site_names() if "compressor.value" in name]
    assert not [name for name, _ in model.named_parameters() if name.endswith("W_V")]
    _, seen = model.run_with_cache(tokens)
    at = "blocks.0.attn."
    assert torch.equal(seen[at + "hook_entry_v"], seen[at + "hook_entry_k"])
    assert torch.equal(seen[at + "hook_entry_k"], seen[f"{KEY}.hook_entry"])
    assert torch.equal(seen[at + "hook_v"], seen[at + "hook_rot_k"])


def test_entry_j_sits_at_position_j_times_the_stride():
    model = build(n_layers=1, window=6, rope_dims=4, rope_base=100.0)
    _, seen = model.run_with_cache(prompt(17), lambda name: "compressor" in name)
    pooled, entry = seen[f"{KEY}.hook_pooled"], seen[f"{KEY}.hook_entry"]
    weight = model.blocks[0].attn.compressor.key.norm.weight.detach()
    for j in range(4):
        for g in range(2):
            normed = reference.rms(pooled[0, j, g], weight)
            assert difference(entry[0, j, g, :2], normed[:2]) <= 1e-12  # the leading channels do not rotate
            for pair, frequency in ((2, 1.0), (4, 0.1)):
                z = complex(normed[pair], normed[pair + 1]) * cmath.exp(1j * 4 * j * frequency)
                assert abs(complex(entry[0, j, g, pair], entry[0, j, g, pair + 1]) - z) <= 1e-12
    # Untied values are neither normed nor rotated.
    assert torch.equal(seen[f"{VALUE}.hook_entry"], seen[f"{VALUE}.hook_pooled"])


@pytest.mark.parametrize("site", ["hook_gate", "hook_payload", "hook_pooled", "hook_entry"])
@pytest.mark.parametrize("branch", [KEY, VALUE])
def test_an_edit_at_every_step_reaches_what_follows_it(site, branch):
    model, tokens = build(n_layers=1), prompt(9)
    read = "blocks.0.attn.hook_entry_" + ("k" if branch is KEY else "v")
    clean, before = model.run_with_cache(tokens, read)
    after = {}

    def flip(tensor, hook):
        return torch.cat((tensor[:, :1], tensor[:, 1:].flip(2)), dim=1)  # the second entry alone

    edited = model.run_with_hooks(
        tokens, fwd_hooks=[(f"{branch}.{site}", flip), (read, lambda x, hook: after.update(x=x.clone()))]
    )
    moved = (after["x"] - before[read]).abs().amax((0, 2, 3)) > 1e-6
    assert moved.tolist() == [False, True]
    assert ((edited - clean).abs().amax(-1)[0] > 1e-9).tolist() == [False] * 7 + [True] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gates_are_formed_in_float32(dtype):
    model, tokens = build(window=6, gate="vector").float(), prompt(13)
    with torch.no_grad():
        _, wide = model.run_with_cache(tokens, f"{KEY}.hook_gate_logits")
        _, seen = model.to(dtype).run_with_cache(tokens, lambda name: name.startswith(KEY))
    gate = seen[f"{KEY}.hook_gate"]
    assert gate.dtype == torch.float32
    assert (gate.sum(2) - 1).abs().max() <= 1e-6  # bf16 gates would miss by 4e-3
    assert seen[f"{KEY}.hook_pooled"].dtype == dtype
    assert (
        difference(seen[f"{KEY}.hook_gate_logits"].double(), wide[f"{KEY}.hook_gate_logits"].double()) < 0.2
    )


def test_windows_are_gathered_wherever_the_inputs_begin():
    geometry = ChunkGeometry(6, 4)
    inputs = torch.arange(40, dtype=torch.float64)[None, :, None]
    for start in range(6):  # entries 1 and 2 pool tokens 2 … 11
        window = window_tokens(geometry, inputs[:, start:], start, 1, 3) if start <= 2 else None
        if window is not None:
            assert window.n_entries == 2
            assert window.gathered()[0, :, :, 0].tolist() == [[2, 3, 4, 5, 6, 7], [6, 7, 8, 9, 10, 11]]
    first = window_tokens(geometry, inputs, 0, 0, 2)
    assert first.clipped.tolist() == [[True, True, False, False, False, False], [False] * 6]
    assert first.gathered()[0, 0, 2:, 0].tolist() == [0, 1, 2, 3]
    assert window_tokens(geometry, inputs[:, :0], 3, 0, 0).gathered().shape == (1, 0, 6, 1)
