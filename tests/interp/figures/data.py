"""Small results with known numbers, shaped as the measurements return them."""

from __future__ import annotations

import numpy as np
import xarray as xr

UNITS = ["1.0", "0.0", "0.1", "1.1"]  # not in order, on purpose
EFFECT = np.array(
    [  # [unit, phase] percent of clean accuracy, in the order of UNITS
        [-1.0, -97.0, -99.0, 2.0],
        [-88.0, 0.5, 0.0, -45.0],
        [-12.0, 1.0, 0.0, 30.0],
        [0.0, 0.0, -2.0, np.nan],
    ]
)
SERVES = np.array([[0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]], bool)
P_EFFECT = np.where(np.nan_to_num(np.abs(EFFECT)) > 10, 0.0005, 0.8)


def sweep(accuracy=(1.0, 0.9, 0.8, 0.1), *, modulus: int = 8, **attrs) -> xr.Dataset:
    stride = len(accuracy)
    by_residue = np.array([accuracy[r % stride] for r in range(modulus)])
    return xr.Dataset(
        {
            "accuracy": ("phase", np.array(accuracy)),
            "accuracy_low": ("phase", np.array(accuracy) - 0.05),
            "accuracy_high": ("phase", np.minimum(1.0, np.array(accuracy) + 0.05)),
            "accuracy_residue": ("residue", by_residue),
            "accuracy_residue_low": ("residue", by_residue - 0.1),
            "accuracy_residue_high": ("residue", np.minimum(1.0, by_residue + 0.1)),
        },
        {"phase": np.arange(stride), "residue": np.arange(modulus)},
        {
            "model": "toy", "stride": stride, "modulus": modulus, "axis": "target", "gap_pp": 90.0,
            "gap_pp_low": 85.0, "gap_pp_high": 94.0, "null_gap_pp": 3.5, "worst_phase": 3, "period": 4,
            "period_p": 0.0005,
        }
        | attrs,
    )  # fmt: skip


def knockout(**attrs) -> xr.Dataset:
    rng = np.random.default_rng(0)
    clean = rng.random((30, 8)) < 0.9
    clean[:, 3] = False
    clean[:19, 3] = True  # one short of the minimum
    under = np.stack([clean & (rng.random((30, 8)) < keep) for keep in (0.2, 0.5, 0.8, 1.0)])
    return xr.Dataset(
        {
            "effect": (("unit", "phase"), EFFECT.copy()),
            "effect_pp": (("unit", "phase"), EFFECT * 0.9),
            "correct": (("unit", "prompt", "residue"), under),
            "clean_correct": (("prompt", "residue"), clean),
        },
        {"unit": UNITS, "phase": np.arange(4), "residue": np.arange(8)},
        {"model": "toy", "stride": 4, "unit_kind": "kv_head", "replace": "mean"} | attrs,
    )


def specialization() -> xr.Dataset:
    serving = SERVES.any(axis=1)
    return xr.Dataset(
        {
            "serves": (("unit", "phase"), SERVES.copy()),
            "loss": (("unit", "phase"), -EFFECT),
            "selectivity": ("unit", np.where(serving, 0.5, np.nan)),
            "p_effect": (("unit", "phase"), P_EFFECT.copy()),
            "p_selective": ("unit", np.where(serving, 0.0005, 0.7)),
            "uncovered": ("phase", ~SERVES.any(axis=0)),
        },
        {"unit": UNITS, "phase": np.arange(4)},
        {"stride": 4, "min_loss": 40.0},
    )


def gates() -> xr.Dataset:
    key = np.array([[0.1, 0.4, 0.4, 0.1], [0.7, 0.1, 0.1, 0.1], [0.25] * 4, [0.25] * 4])
    value = np.roll(key, 1, axis=1)
    value[3] = np.nan  # tied values: no value gate
    entropy = np.exp(-(key * np.log(key)).sum(1))
    return xr.Dataset(
        {
            "gate_key": (("unit", "offset"), key),
            "gate_value": (("unit", "offset"), value),
            "profile_key": (("unit", "phase"), 4 * key),
            "profile_value": (("unit", "phase"), 4 * value),
            "static_key": ("unit", entropy),
            "static_value": ("unit", np.where(np.isnan(value[:, 0]), np.nan, entropy)),
            "per_window_key": ("unit", entropy * 0.9),
            "per_window_value": ("unit", np.where(np.isnan(value[:, 0]), np.nan, entropy * 0.8)),
        },
        {"unit": UNITS, "phase": np.arange(4), "offset": np.arange(4)},
        {"window": 4, "stride": 4, "model": "toy"},
    )
