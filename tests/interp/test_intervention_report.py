"""The page on interventions, on the smallest model."""

import json

from interp import intervention_report, results


def test_the_page_states_every_number_with_its_n_and_what_is_missing(tmp_path, monkeypatch):
    for name, value in {
        "CYCLED": ("tiny", "no-such"),
        "PARTS": "no-such",
        "RANKED": ("tiny",),
        "CONTROL": "-",
    }.items():
        monkeypatch.setattr(intervention_report, name, value)
    page, folder = tmp_path / "page.md", tmp_path / "results"
    intervention_report.main(["-o", str(page), "--results", str(folder), "-n", "10"])
    text = page.read_text(encoding="utf-8")
    cycled = results.load(folder / "cycling-tiny.nc")
    assert cycled.attrs["seed"] == 10_000
    assert json.loads(cycled.attrs["task"])["task"] == "recall"
    for i, shift in enumerate(("+1", "-1")):
        value = cycled.r2.values[i]
        assert f"| tiny | {shift} | {value:.2f} (" in text or f"| tiny | {shift} | undefined" in text
    for unit in ("head", "gate_offset"):
        found = results.load(folder / f"attribution-tiny-{unit}.nc")
        assert f"| tiny | {unit} | {found.attrs['rank_correlation']:.2f} (" in text
    assert "not in the zoo: no-such" in text
    low, high = (cycled[f"r2_inner_{end}"].values for end in ("low", "high"))
    for i, shift in enumerate(("+1", "-1")):
        told = "supported" if low[i] >= 0.66 else "not supported" if high[i] < 0.66 else "undecided"
        verdict = text.split("by the interval, ")[1].split("\n")[0]
        assert f"tiny by {shift}" in next(p for p in verdict.split("; ") if p.startswith(f"{told}:"))
