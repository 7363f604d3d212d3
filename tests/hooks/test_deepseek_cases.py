"""Cases from public reports, against the hooked Hugging Face class."""

from __future__ import annotations

import pytest
import torch

from hooks.errors import PhaselensError, SiteError
from tests.hooks.deepseek_models import CSA, SLIDING, hooked, tokens, v4

pytestmark = pytest.mark.usefixtures("no_grad")
SCORES, PATTERN = "blocks.1.attn.hook_attn_scores", "blocks.1.attn.hook_pattern"
PICKS = "blocks.1.attn.indexer.hook_picks"


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


def test_picks_never_reach_entries_of_the_future():
    # transformers#45820
    _, model = hooked(topk=2)
    ids = tokens(1, 16)
    changed = ids.clone()
    changed[0, 15] = (changed[0, 15] + 1) % 50
    torch.testing.assert_close(model(changed)[:, :15], model(ids)[:, :15], atol=1e-5, rtol=1e-5)
    picks = model.run_with_cache(ids, [PICKS])[1][PICKS][0]
    assert [int((row >= 0).sum()) for row in picks[:9]] == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert all(int(row.max()) < (t + 1) // 4 for t, row in enumerate(picks))


def test_every_query_reads_its_own_picks():
    # transformers#45758
    from hooks import hook_deepseek_v4

    model = hook_deepseek_v4(v4(index_topk=1))
    ids = tokens(1, 12)

    def force(picks, hook):
        for query, entry in forced.items():
            picks[0, query] = entry
        return picks

    forced = {9: 0, 11: 1}
    with model.hooks([(PICKS, force)]):
        pattern = model.run_with_cache(ids, [PATTERN])[1][PATTERN][0]
    entries = pattern[:, :, 12:15]
    assert float(entries[:, 9, 0].min()) > 0
    assert float(entries[:, 11, 1].min()) > 0
    assert float(entries[:, 9, 1:].max()) == 0.0
    assert float(entries[:, 11, [0, 2]].max()) == 0.0
    cache, rows = model.start_cache(1), []
    for t in range(12):
        step = {0: forced[t]} if t in forced else {}

        def force_one(picks, hook, step=step):
            for query, entry in step.items():
                picks[0, query] = entry
            return picks

        with model.hooks([(PICKS, force_one)]):
            rows.append(model(ids[:, t : t + 1], cache))
    with model.hooks([(PICKS, force)]):
        together = model(ids)
    torch.testing.assert_close(torch.cat(rows, 1), together, atol=1e-4, rtol=1e-4)


def test_picks_of_entries_that_do_not_exist_raise():
    _, model = hooked(topk=2)
    for bad in (3, -2):
        told = rf"hook_picks: pick {bad} does not exist; valid: -1 \(empty\) to 2"
        with pytest.raises(SiteError, match=told):
            model.run_with_hooks(tokens(1, 12), fwd_hooks=[(PICKS, lambda picks, hook, b=bad: picks * 0 + b)])


def test_picks_set_to_entries_of_the_future_read_nothing():
    """Set to entry 3 (tokens 8 to 15) for every query, the last token reaches no logits before position 15."""
    _, model = hooked(topk=2)
    ids = tokens(1, 16)
    other = ids.clone()
    other[0, -1] = (ids[0, -1] + 1) % 50
    future = (PICKS, lambda picks, hook: torch.full_like(picks, 3))
    with torch.no_grad():
        first, second = (model.run_with_hooks(each, fwd_hooks=[future]) for each in (ids, other))
        none = model.run_with_hooks(ids, fwd_hooks=[(PICKS, lambda picks, hook: torch.full_like(picks, -1))])
    assert torch.equal(first[:, :15], second[:, :15])
    assert torch.equal(first[:, :15], none[:, :15])
    assert float((first[:, 15] - none[:, 15]).abs().max()) > 1e-3


def test_prompts_shorter_than_a_window():
    # native-sparse-attention-pytorch#1
    from hooks import hook_deepseek_v4

    sizes = dict(index_topk=512, compress_rope_theta=10000.0)
    source = v4(layers=(CSA, CSA), **sizes)
    compressed = hook_deepseek_v4(source)
    windows = v4(layers=(SLIDING, SLIDING), **sizes)
    windows.load_state_dict(source.state_dict(), strict=False)
    for length in (1, 2, 3, 4):
        ids = tokens(2, length)
        logits, seen = compressed.run_with_cache(ids)
        assert bool(torch.isfinite(logits).all())
        assert seen["blocks.1.attn.hook_entry_k"].shape[1] == (1 if length == 4 else 0)
        alike = torch.equal(logits, windows(ids).logits)
        assert alike is (length < 4)


def test_padding_and_positions_are_refused():
    # nnsight#672, TransformerLens#1609
    _, model = hooked()
    ids = tokens(2, 10)
    expected = model(ids)
    assert torch.equal(model(ids, attention_mask=torch.ones(2, 10), position_ids=torch.arange(10)), expected)
    left = torch.ones(2, 10)
    left[0, :3] = 0
    right = torch.ones(2, 10, dtype=torch.bool)
    right[1, 9] = False
    for mask in (left, right):
        with pytest.raises(PhaselensError, match=r"attention_mask holds zeros.*separate calls"):
            model(ids, attention_mask=mask)
    for positions in (torch.arange(10) + 4, torch.arange(10).flip(0), (torch.arange(10) - 3).clamp(0)[None]):
        with pytest.raises(PhaselensError, match="position_ids must be 0 to 9"):
            model(ids, position_ids=positions)
    for mask in (
        torch.ones(1, 10),
        torch.ones(2, 9),
        torch.full((2, 1, 10, 10), -1e9),
        torch.zeros(2, 1, 10, 10),
    ):
        with pytest.raises(PhaselensError, match=r"attention_mask has shape .*; valid: \[2, 10\], all ones"):
            model(ids, attention_mask=mask)
    with pytest.raises(PhaselensError, match="attention_mask holds other values than 1"):
        model(ids, attention_mask=torch.full((2, 10), -1e9))
    for positions in (torch.arange(9), torch.arange(20).reshape(2, 10) % 10 + 1, torch.arange(10)[:, None]):
        with pytest.raises(PhaselensError, match="position_ids must be 0 to 9"):
            model(ids, position_ids=positions)
    with pytest.raises(PhaselensError, match="position_ids is no rectangular tensor"):
        model(ids, position_ids=[[0], [0, 1]])
    cache = model.start_cache(2)
    model(ids[:, :6], cache)
    with pytest.raises(PhaselensError, match=r"valid: \[2, 4\] or \[2, 10\], all ones"):
        model(ids[:, 6:], cache, attention_mask=torch.ones(2, 6))
    with pytest.raises(PhaselensError, match="position_ids must be 6 to 9"):
        model(ids[:, 6:], cache, position_ids=torch.arange(4))
    for bad, why in [([[1, 2, 3], [1, 2]], "ragged"), (torch.zeros(2, 0, dtype=torch.long), "non-empty"),
                     (torch.rand(2, 4), "integer"), (torch.tensor([[1, 50]]), "50 is outside the vocabulary"),
                     (torch.tensor([[1, -1]]), "-1 is outside")]:  # fmt: skip
        with pytest.raises(PhaselensError, match=why):
            model(bad)


def test_a_query_reads_exactly_its_window():
    # transformers#39408; windows of 6
    _, model = hooked()
    ids, cache, counts = tokens(1, 10), model.start_cache(1), []
    whole = model.run_with_cache(ids, [PATTERN])[1][PATTERN][0, 0, :, :10]
    for t in range(10):
        step = model.run_with_cache(ids[:, t : t + 1], [PATTERN], cache=cache)[1][PATTERN][0, 0, 0]
        assert step.shape[0] == t + 1 + (t + 1) // 4 + 1
        counts.append(int((step[: t + 1] > 0).sum()))
        assert bool((step[: max(0, t - 5)] == 0).all())
    assert counts == [int((row > 0).sum()) for row in whole] == [1, 2, 3, 4, 5, 6, 6, 6, 6, 6]


def test_window_entries_and_sink_share_one_softmax():
    # flash-linear-attention#831
    _, model = hooked()
    ids = tokens(2, 19)

    def drop_sink(scores, hook):
        scores[..., -1] = -torch.inf
        return scores

    _, seen = model.run_with_cache(ids, [SCORES, PATTERN])
    torch.testing.assert_close(seen[PATTERN].sum(-1), torch.ones(2, 4, 19), atol=1e-6, rtol=0)
    assert float(seen[PATTERN][..., -1].min()) > 0
    with model.hooks([(SCORES, drop_sink)]):
        without = model.run_with_cache(ids, [PATTERN])[1][PATTERN]
    torch.testing.assert_close(without[..., :-1], seen[SCORES][..., :-1].softmax(-1), atol=1e-6, rtol=1e-5)


def test_an_edit_of_one_row_leaves_the_other_rows_alone():
    # circuit-tracer#105
    _, model = hooked()
    ids = tokens(3, 19)

    def ablate(z, hook):
        z[1, 0, 1] = 0
        return z

    edited = model.run_with_hooks(ids, fwd_hooks=[("blocks.1.attn.hook_z", ablate)])
    clean = model(ids)
    assert torch.equal(edited[[0, 2]], clean[[0, 2]])
    assert not torch.equal(edited[1], clean[1])


def test_a_prompt_alone_equals_itself_in_a_batch():
    # transformers#26869
    _, model = hooked()
    ids = tokens(5, 19)
    torch.testing.assert_close(model(ids)[2:3], model(ids[2:3]), atol=1e-4, rtol=1e-4)


def test_a_token_moves_only_later_logits():
    _, model = hooked()
    ids = tokens(1, 19)
    clean = model(ids)
    for position in (0, 5, 12, 18):
        changed = ids.clone()
        changed[0, position] = (changed[0, position] + 1) % 50
        logits = model(changed)
        torch.testing.assert_close(logits[:, :position], clean[:, :position], atol=1e-5, rtol=1e-5)
        assert float((logits[:, position:] - clean[:, position:]).abs().max()) > 1e-3


def test_all_picks_equal_attending_everything_and_scaled_scores_change_nothing():
    _, many = hooked(topk=64)
    plain, few = hooked(topk=2)
    ids = tokens(1, 19)
    everything = (PICKS, lambda picks, hook: torch.arange(4).expand(1, 19, 4).clone())
    late = slice(15, 19)
    # From position 15 on all four entries are visible, so picking all leaks nothing there.
    with many.hooks([everything]):
        pattern = many.run_with_cache(ids, [PATTERN])[1][PATTERN]
    torch.testing.assert_close(
        pattern[:, :, late], many.run_with_cache(ids, [PATTERN])[1][PATTERN][:, :, late], atol=1e-6, rtol=1e-5
    )
    scaled = few.run_with_hooks(ids, fwd_hooks=[("blocks.1.attn.indexer.hook_scores", lambda s, hook: s * 3)])
    assert torch.equal(scaled, plain(ids).logits)
