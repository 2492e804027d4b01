"""The style of the HTML report (report.py): light and dark, in a page of its own and in a notebook."""

CSS = """
.hbc-page { margin: 0 auto; max-width: 1500px; padding: 12px; background: light-dark(#ffffff, #14171a); }
.hbc-report { color-scheme: light dark; --ink: light-dark(#1f2328, #e6e9ec); --faint: light-dark(#68717a, #9aa4ae);
  --edge: light-dark(#b3bac1, #59636d); --paper: light-dark(#ffffff, #1b1f24); --device: light-dark(#e8f0fb, #1d2c42);
  --host: light-dark(#fdf1dc, #3d301a); --input: light-dark(#eef0f2, #2a2f35); --changed: light-dark(#d9480f, #ff8a4c);
  font: 14px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); border: 1px solid var(--edge);
  border-radius: 8px; padding: 12px 16px; overflow-wrap: anywhere; }
[data-jp-theme-light="true"] .hbc-report, [data-theme="light"] .hbc-report { color-scheme: light; }
[data-jp-theme-light="false"] .hbc-report, [data-theme="dark"] .hbc-report { color-scheme: dark; }
.hbc-report h3 { margin: 0 0 8px; font-size: 17px; font-weight: 600; }
.hbc-report small { font-size: 14px; font-weight: 400; color: var(--faint); }
.hbc-report dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; margin: 0 0 10px; }
.hbc-report dt { color: var(--faint); }
.hbc-report dd { margin: 0; }
.hbc-report summary { cursor: pointer; font-weight: 600; margin: 8px 0 4px; }
.hbc-report table { border-collapse: collapse; margin: 0; background: none; font-size: 13px; }
.hbc-report td { text-align: left; vertical-align: top; padding: 2px 18px 2px 0; color: var(--faint); background: none; }
.hbc-report td:nth-child(3) { text-align: right; white-space: nowrap; }
.hbc-report td:nth-child(-n+2) { white-space: nowrap; }
.hbc-report .fired td { color: var(--ink); }
.hbc-report .graphs { display: flex; flex-wrap: wrap; gap: 16px; align-items: start; }
.hbc-report figure { margin: 0; min-width: 0; max-width: 100%; text-align: center;
  flex: var(--width, 500) 1 calc(var(--width, 500) * 0.6px); }
.hbc-report figcaption { color: var(--faint); padding: 6px 0; }
.hbc-report svg { max-width: 100%; height: auto; font: 11px ui-monospace, monospace; }
.hbc-report svg path { fill: none; stroke: var(--edge); }
.hbc-report svg text { fill: var(--ink); text-anchor: middle; }
.hbc-report svg .small { fill: var(--faint); }
.hbc-report svg rect { fill: var(--device); stroke: var(--edge); }
.hbc-report svg .host rect { fill: var(--host); }
.hbc-report svg .input rect, .hbc-report svg .method rect { fill: var(--input); }
.hbc-report svg .changed rect { stroke: var(--changed); stroke-width: 1.6; }
.hbc-report svg g:hover rect { stroke: var(--ink); }
.hbc-report .legend { color: var(--faint); font-size: 13px; margin: 4px 0; }
.hbc-report .legend span { display: inline-block; padding: 0 8px; margin-right: 8px; border: 1px solid var(--edge);
  border-radius: 4px; color: var(--ink); }
.hbc-report .legend .device { background: var(--device); }
.hbc-report .legend .host { background: var(--host); }
.hbc-report .legend .changed { border: 2px solid var(--changed); }
"""
