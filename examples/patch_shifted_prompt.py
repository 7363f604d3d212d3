"""Patch heads from the same prompt with its target moved one phase on: which head minds where it stands?

Run: python examples/patch_shifted_prompt.py [MODEL] [PROMPTS PER RESIDUE]
"""

import sys

import hooks
from interp import patch
from interp.tasks import RecallTask

name = sys.argv[1] if len(sys.argv) > 1 else "w8s8-2kv"
n_per_residue = int(sys.argv[2]) if len(sys.argv) > 2 else 16

model = hooks.load(name)
task = RecallTask.for_model(model)
found = patch(model, task, pairs="shift", shift=1, unit="head", n=n_per_residue * task.modulus)

print(
    f"{name}: heads that change the answer most when patched from the shifted prompt (log-probability, nats)"
)
effect = found["effect_logprob"]
for unit in effect["unit"].values[abs(effect).max("phase").argsort().values[::-1][:5]]:
    phase = int(abs(effect.sel(unit=unit)).argmax("phase"))
    low, high = (float(found[f"effect_logprob_{end}"].sel(unit=unit)[phase]) for end in ("low", "high"))
    print(
        f"  head {unit} at phase {phase}: {float(effect.sel(unit=unit)[phase]):+.2f} ({low:+.2f} to {high:+.2f})"
    )
