"""Records dropped from shared entries, against passes of one prompt with gate logits set to −inf by hand."""

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from hooks.errors import SiteError
from interp import engine
from interp.engine import Variant
from interp.figures.base import FigureError
from interp.figures.owner_maps import owner_effects_map, owner_mass_map
from interp.knockout import knockout
from interp.owners import entry_owners, owner_effects
from interp.units import union, units
from tests.interp.intervention_models import TASK, small

SHARED = dict(
    n_layers=3, roles=("full", "reuse", "full"), window=(2, 2, 1), stride=(2, 2, 1),
    gate=("scalar", "scalar", "uniform"), exact_window=3,
)  # fmt: skip
LENGTH = TASK.sample(4, seed=0).tokens.shape[1]


def by_hand(model, ids, target, owner, readers, *, stored):
    """Logits and layer 1's attention of one prompt whose record the readers do not find in the owner's entries."""
    stride = 2 if owner == 0 else 1
    record = {target, target + 1}
    emptied = [e for e in range(LENGTH // stride) if set(range(e * stride, (e + 1) * stride)) <= record]
    halved = [e for e in {t // stride for t in record} if e not in emptied and e < LENGTH // stride]

    def cut(logits, hook):
        for entry in halved:
            for token in record:
                if token // stride == entry:
                    logits[:, entry, token % stride] = -torch.inf
        return logits

    def hide(scores, hook):
        for entry in emptied:
            scores[..., LENGTH + entry] = -torch.inf
        return scores

    gates = [(f"blocks.{owner}.attn.compressor.{b}.hook_gate_logits", cut) for b in ("key", "value")]
    gates = gates if owner == 0 else []
    hidden = [(f"blocks.{reader}.attn.hook_attn_scores", hide) for reader in readers]
    reads = [f"blocks.{owner}.attn.hook_entry_{b}" for b in "kv"]
    with model.hooks(fwd_hooks=gates):
        _, kept = model.run_with_cache(ids, reads)
    edits = gates + hidden
    if not stored:
        edits = hidden + [
            (f"blocks.{reader}.attn.hook_entry_{b}", lambda t, hook, b=b: kept[f"blocks.{owner}.attn.hook_entry_{b}"])
            for reader in readers for b in "kv"
        ]  # fmt: skip
    with torch.no_grad(), model.hooks(fwd_hooks=edits):
        logits, seen = model.run_with_cache(ids, ["blocks.1.attn.hook_pattern"])
    columns = sorted({LENGTH + t // 2 for t in record if t // 2 < LENGTH // 2})
    return logits[0, -1].log_softmax(-1), float(
        seen["blocks.1.attn.hook_pattern"][0, :, -1, columns].sum(-1).mean()
    )


def test_every_pair_of_owner_and_reader_equals_a_pass_by_hand():
    model = small(**SHARED)
    found = owner_effects(model, TASK, n=8, seed=3, progress=False)
    prompts = TASK.sample(8, seed=3)
    places = {
        "0→0": (0, [0], False), "0→1": (0, [1], False), "0→all": (0, [0, 1], True), "2→2": (2, [2], False),
        "2→all": (2, [2], True),
    }  # fmt: skip
    assert found["unit"].values.tolist() == list(places)
    mass = {unit: [] for unit in ("clean", *places)}
    for row in range(8):
        ids, target = prompts.tokens[row : row + 1], int(prompts.target_position[row])
        at = dict(prompt=row // 4, residue=row % 4)
        mass["clean"].append(by_hand(model, ids, target, 0, [], stored=False)[1])
        for unit, (owner, readers, stored) in places.items():
            logprob, attended = by_hand(model, ids, target, owner, readers, stored=stored)
            got = float(found["logprob"].sel(unit=unit, **at))
            assert got == pytest.approx(float(logprob[prompts.answer[row]]), abs=2e-5), (unit, row)
            mass[unit].append(attended)
    phase = prompts.residue.numpy() % 2
    for unit in places:
        change = np.subtract(mass[unit], mass["clean"])
        expected = [change[phase == p].mean() for p in (0, 1)]
        assert found["mass"].sel(unit=unit, layer=1).values == pytest.approx(expected, abs=2e-5), unit
    assert float(found["effect_logprob"].sel(unit="0→1").max()) != 0
    assert found["mass"].sel(unit="2→2", layer=1).values.tolist() == [0, 0]  # nothing goes back in depth
    assert np.isnan(found["picked"].values).all()


def test_picks_are_counted_and_owners_found():
    model = small(
        n_layers=3,
        roles=("full", "reuse", "reindex"),
        index_topk=2,
        index_heads=2,
        index_dim=4,
        exact_window=3,
    )
    assert entry_owners(model) == {0: [0, 1, 2]}
    found = owner_effects(model, TASK, n=8, seed=1, progress=False)
    prompts = TASK.sample(8, seed=1)
    for layer, source in ((0, 0), (1, 0), (2, 2)):
        _, seen = model.run_with_cache(prompts.tokens, [f"blocks.{source}.attn.indexer.hook_picks"])
        picks = seen[f"blocks.{source}.attn.indexer.hook_picks"][:, -1].tolist()
        hit = [
            bool({t // 4 for t in (target, target + 1)} & set(row))
            for row, target in zip(picks, prompts.target_position.tolist(), strict=True)
        ]
        expected = [np.mean([h for i, h in enumerate(hit) if i % 4 == phase]) for phase in range(4)]
        assert found["picked"].sel(layer=layer).values == pytest.approx(expected)
    with pytest.raises(SiteError, match="stores no entries"):
        entry_owners(small(attention="sliding"))


def test_maps_show_the_results_and_refuse_others():
    found = owner_effects(small(**SHARED), TASK, n=8, seed=3, progress=False)
    figure = owner_effects_map(found)
    assert isinstance(figure, go.Figure)
    cells = next(trace for trace in figure.data if trace.name == "cells")
    assert len(cells.customdata) == 5 * 2
    row = next(r for r in cells.customdata if r[0] == "0→1" and r[1] == "1")
    assert row[2] == pytest.approx(float(found["effect_logprob"].sel(unit="0→1", phase=1)))
    cells = next(trace for trace in owner_mass_map(found, phase=0).data if trace.name == "cells")
    row = next(r for r in cells.customdata if r[0] == "0→all" and r[1] == "1")
    assert row[2] == pytest.approx(float(found["mass"].sel(unit="0→all", layer=1, phase=0)))
    with pytest.raises(FigureError, match="no phase 7"):
        owner_mass_map(found, phase=7)
    with pytest.raises(FigureError):
        owner_effects_map(found.drop_vars("mass"))


@pytest.mark.parametrize("at", ["final", "all"])
def test_what_is_struck_from_picks_is_lost_for_all_that_follow_them(at):
    """Picks of everything: striking the owner's equals masking the target's entries in owner and reuse layer."""
    model = small(n_layers=3, roles=("full", "reuse", "reindex"), index_topk=9, index_heads=2, index_dim=4)
    prompts = TASK.sample(8, seed=2)
    picks = {one.label: one for one in units(model, "picks", prompts)}
    masked = {one.label: one for one in units(model, "target_entry", prompts)}
    assert list(picks) == ["0", "2"]
    together = [picks["0"], union([masked["0"], masked["1"]]), picks["2"], masked["2"]]
    variants = [Variant(one.label, one.edits(None)) for one in together]
    scores = engine.run(model, prompts, variants, at=at, progress=False)["logprob"]
    assert torch.allclose(scores[1], scores[2], atol=1e-5)
    assert torch.allclose(scores[3], scores[4], atol=1e-5)
    assert float((scores[1] - scores[0]).abs().max()) > 1e-5


def test_a_memory_of_n_grams_is_knocked_out_as_a_unit():
    model = small(engram=(False, True), engram_rows=16, engram_heads=2, engram_dim=4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("engram.W_value"):  # an untrained memory adds nothing
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    prompts = TASK.sample(8, seed=2)
    found = knockout(model, TASK, unit="engram", replace="zero", at="all", n=8, seed=2, progress=False)
    assert found["unit"].values.tolist() == ["1"]
    with torch.no_grad():
        off = [("blocks.1.engram.hook_out", lambda tensor, hook: torch.zeros_like(tensor))]
        logits = model.run_with_hooks(prompts.tokens, fwd_hooks=off)[:, -1].log_softmax(-1)
    expected = logits.gather(1, prompts.answer[:, None])[:, 0].reshape(-1, 4).numpy()
    assert found["logprob"].sel(unit="1").values == pytest.approx(expected, abs=1e-5)
    assert np.abs(found["logprob"].sel(unit="1").values - found["clean_logprob"].values).max() > 1e-4
