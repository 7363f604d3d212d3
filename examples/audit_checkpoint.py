"""Audit a checkpoint directory for phase sensitivity, end to end.

The folder may hold any Hugging Face causal language model (safetensors and config.json, with its
tokenizer) or a model saved by phaselens; here it is one that ships with the package. From a shell:

    phaselens audit FOLDER -o reports/audit

Run:  python examples/audit_checkpoint.py [FOLDER] [-o DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import interp
from hooks.checkpoint import zoo_path


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Audit a checkpoint directory for phase sensitivity.")
    parser.add_argument("folder", nargs="?", type=Path, default=zoo_path("w8s8-1kv"))
    parser.add_argument("-o", "--out", type=Path, default=Path("reports/audit"))
    parser.add_argument("-n", "--n-per-residue", type=int, default=32)
    given = parser.parse_args(argv)

    found = interp.audit(given.folder, out=given.out, n_per_residue=given.n_per_residue)

    for name, test in found.items():
        a = test.attrs
        if name.endswith("_query"):  # the same prompts at several query phases
            print(f"  gap by target phase {a['target_gap_pp']:.1f} pp (p = {a['target_p']:.4f})")
            print(f"  gap by query phase  {a['query_gap_pp']:.1f} pp (p = {a['query_p']:.4f})")
            continue
        print(f"{a['model']}, {name}: mean accuracy {100 * a['mean_accuracy']:.1f}%")
        print(f"  gap {a['gap_pp']:.1f} pp, 95% {a['gap_pp_low']:.1f} to {a['gap_pp_high']:.1f}")
        print(f"  worst phase {a['worst_phase']} of stride {a['stride']}, period {a['period'] or 'none'}")
        if not a["found"]:
            print(f"  no phase sensitivity; a gap over {a['detectable_gap_pp']:.1f} pp would have been seen")
    print(f"Page: {given.out / 'index.html'}")


if __name__ == "__main__":
    main()
