"""Take one head out of your own model and see which phases it was needed for.

Run: python examples/ablate_one_head.py [MODEL] [LAYER.HEAD] [PROMPTS PER RESIDUE]
MODEL is a zoo name or the folder of a saved model.
"""

import sys

import hooks
from interp import knockout, specialization
from interp.specialization import arcs_text
from interp.tasks import RecallTask

name = sys.argv[1] if len(sys.argv) > 1 else "w8s8-2kv"
head = sys.argv[2] if len(sys.argv) > 2 else "1.0"
n_per_residue = int(sys.argv[3]) if len(sys.argv) > 3 else 16

model = hooks.load(name)
task = RecallTask.for_model(model)
effects = knockout(model, task, unit="kv_head", only=[head], n=n_per_residue * task.modulus)
served = specialization(effects)

print(f"{name} without KV head {head}, change of accuracy by phase (percentage points):")
for phase, change in enumerate(effects["effect_pp"].sel(unit=head).values):
    print(f"  {phase}: {change:+.1f}")
print(f"phases it serves: {arcs_text(served['serves'].sel(unit=head).values)}")
