"""A three-panel figure for a paper, from one results folder: accuracy, who serves which phase, and gates.

Run: python examples/three_panel_figure.py reports/w8s8-2kv figure1 [pdf,svg,png,html]
"""

import sys

from interp.figures import DOUBLE_COLUMN_MM
from interp.figures.export import export
from interp.figures.paper import paper_figure
from interp.report import load_results

folder, stem = sys.argv[1:3]
formats = (sys.argv[3] if len(sys.argv) > 3 else "pdf,svg,png,html").split(",")

figure = paper_figure(
    load_results(folder), ["accuracy", "knockout", "gates"], width_mm=DOUBLE_COLUMN_MM, font_pt=7, columns=2
)
written = export(figure, stem, formats)
print(*written.files, sep="\n")
print(written.notice or figure.layout.meta["caption"])
