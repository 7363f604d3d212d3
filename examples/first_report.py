"""Which heads of a trained model serve which phases, in a dozen lines.

Run: python examples/first_report.py [MODEL] [PROMPTS PER RESIDUE]
"""

import sys

import hooks
from interp import knockout, phase_sweep, specialization
from interp.specialization import arcs_text
from interp.tasks import RecallTask

name = sys.argv[1] if len(sys.argv) > 1 else "w8s8-4kv"
n_per_residue = int(sys.argv[2]) if len(sys.argv) > 2 else 24

model = hooks.load(name)
task = RecallTask.for_model(model)
sweep = phase_sweep(model, task, n_per_residue=n_per_residue)
effects = knockout(model, task, unit="kv_head", n=n_per_residue * task.modulus)
served = specialization(effects)

accuracy = ", ".join(f"{100 * a:.0f}" for a in sweep["accuracy"].values)
print(
    f"{name}: accuracy by phase {accuracy} %; period {sweep.attrs['period']}, gap {sweep.attrs['gap_pp']:.0f} pp"
)
for unit in served["unit"].values:
    phases = served["serves"].sel(unit=unit).values
    if phases.any():
        print(f"  KV head {unit} serves phases {arcs_text(phases)}")
print(f"  served by none: {arcs_text(served['uncovered'].values)}")
