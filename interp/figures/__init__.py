"""One builder per figure, used by the command line, the explorer and the examples alike.

Every builder takes results (:class:`xarray.Dataset`) and a :class:`Theme`, and returns a plotly figure whose
``layout.meta`` holds ``alt`` and ``caption``. Write figures with :func:`interp.figures.export.export`.
"""

from interp.figures.accuracy import accuracy_by_residue
from interp.figures.base import FigureError
from interp.figures.compose import panels
from interp.figures.cycling import cycling_figure
from interp.figures.gates_plane import effective_offsets
from interp.figures.heatmap import effect_heatmap
from interp.figures.patch_maps import patching_map
from interp.figures.profiles import gate_profiles
from interp.figures.theme import COLUMN_MM, DOUBLE_COLUMN_MM, Theme

__all__ = [
    "COLUMN_MM",
    "DOUBLE_COLUMN_MM",
    "FigureError",
    "Theme",
    "accuracy_by_residue",
    "cycling_figure",
    "effect_heatmap",
    "effective_offsets",
    "gate_profiles",
    "panels",
    "patching_map",
]
