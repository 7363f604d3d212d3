"""The page's style sheet; colours are those of the figures' theme, told apart under colour blindness."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1a1a1a;--muted:#595959;--rule:#d9d9d9;--card:#f6f7f8;
--cycle:#f4f4f4;--boundary:#dedede;--a:#0072b2;--b:#b24d00;--heat:#0072b2}
@media (prefers-color-scheme:dark){:root{--paper:#14171c;--ink:#f1f3f5;--muted:#a9b0b8;--rule:#3a4049;
--card:#1d2128;--cycle:#1d2128;--boundary:#343b46;--a:#56b4e9;--b:#ff8c42;--heat:#56b4e9}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,"Liberation Sans",Arial,sans-serif}
main{max-width:64rem;margin:0 auto;padding:1.25rem 1rem 4rem}
h1{font-size:clamp(1.4rem,4vw,2rem);line-height:1.2;margin:.5rem 0 1rem;overflow-wrap:anywhere}
h2{font-size:1.35rem;margin:2.5rem 0 .5rem;padding-top:1rem;border-top:1px solid var(--rule);
overflow-wrap:anywhere}
h3{font-size:1.1rem;margin:1.75rem 0 .25rem}
p{max-width:46rem;margin:.4rem 0;overflow-wrap:anywhere}
a{color:var(--a)}
.verdict{border-left:4px solid var(--a);background:var(--card);padding:.6rem 1rem;border-radius:0 6px 6px 0}
.verdict p{max-width:none}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.2rem,1fr));gap:.6rem;margin:1rem 0}
.tiles div{background:var(--card);border-radius:6px;padding:.55rem .75rem}
.tiles dt{color:var(--muted);font-size:.85rem}
.tiles dd{margin:0;font-size:1.35rem;font-weight:600;font-variant-numeric:tabular-nums;line-height:1.3}
.tiles small{display:block;font-size:.85rem;font-weight:400;color:var(--muted)}
figure{margin:1rem 0}
figcaption,.small{color:var(--muted);font-size:.9rem;max-width:46rem}
.chart{display:block;width:100%;max-width:46rem;height:auto}
.chart text{fill:var(--ink);font-size:13px}
.grid{stroke:var(--rule);stroke-width:1}
.cycle{fill:var(--cycle)}.boundary{fill:var(--boundary)}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.whisker{stroke-width:1.4}
.dot{stroke:var(--paper);stroke-width:.6}
.line.s0,.whisker.s0{stroke:var(--a)}.dot.s0{fill:var(--a)}
.line.s1,.whisker.s1{stroke:var(--b)}.dot.s1{fill:var(--b)}
.line.s1{stroke-dasharray:6 3}
.legend{list-style:none;display:flex;gap:1.25rem;margin:0 0 .25rem;padding:0;font-size:.9rem}
.legend svg{width:.9em;height:.9em;margin-right:.4em;vertical-align:-.05em}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:0 2.5rem}
.columns>*{min-width:0}
.scroll{overflow-x:auto;margin:.75rem 0}
.scroll:focus-visible{outline:2px solid var(--a);outline-offset:2px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.95rem}
caption{text-align:left;font-weight:600;padding-bottom:.3rem}
th,td{padding:.22rem .7rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}
th{font-weight:600}
thead th{color:var(--muted);font-weight:500;vertical-align:bottom}
th:first-child{text-align:left;padding-left:0}
tbody th{font-weight:500}
.heat td[style]{background:color-mix(in srgb,var(--heat) calc(var(--v)*.45),transparent)}
.total td,.total th{border-top:2px solid var(--rule)}
.wide td{white-space:normal;text-align:left;overflow-wrap:anywhere;min-width:14rem}
.notes{padding-left:1.2rem;max-width:46rem}
.files{columns:16rem;padding-left:1.2rem}
.files a{overflow-wrap:anywhere}
details{margin:.75rem 0}
summary{cursor:pointer;color:var(--a)}
@media (max-width:34rem){.chart.lines text{font-size:17px}.chart.rows text{font-size:14.5px}
th,td{padding:.22rem .45rem}}
@media print{body{font-size:11pt}details{display:block}}
"""
