"""The look of the page: one style sheet, light and dark, from a phone's width up."""

STYLE = """
:root{color-scheme:light dark;--paper:#fbfaf7;--card:#fff;--ink:#1c2321;--soft:#5b6663;
--rule:#e2e0d8;--ready:#12836b;--unproven:#b07f10;--not_capable:#7a5bb0;--failing:#c8402f;
--unknown:#7f8784;--accent:#1f5f8b;--code:#f2f0e9}
@media(prefers-color-scheme:dark){:root{--paper:#14191a;--card:#1c2324;--ink:#e8ebe8;
--soft:#9eaaa6;--rule:#323b3b;--ready:#35b597;--unproven:#e6b53c;--not_capable:#a98ae0;
--failing:#ec6b59;--unknown:#7f8986;--accent:#6cb3e0;--code:#121718}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:880px;margin:0 auto;padding:28px 20px 80px}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}
h2{font-size:1.2rem;margin:0 0 4px}
*+h2{margin-top:26px}
p{margin:0 0 12px}
.soft,figcaption,.none{color:var(--soft)}
.soft{font-size:.92rem}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;
padding:18px 20px;margin:18px 0}
a{color:var(--accent)}
.answer{font-size:1.25rem;line-height:1.35;margin:4px 0 12px}
.first,.meanings{display:grid;grid-template-columns:auto 1fr;gap:6px 16px;margin:0 0 12px}
.first dd,.meanings dd{margin:0;min-width:0;overflow-wrap:anywhere}
.first dt,.meanings dt{font-weight:600;color:var(--soft)}
.meanings{font-size:.92rem}
.tiles{list-style:none;padding:0;display:grid;grid-template-columns:repeat(5,1fr);gap:10px;
margin:16px 0 12px}
.tile{border-top:4px solid;padding:8px 2px 0}
.tile b{display:block;font-size:1.7rem;line-height:1.15;font-variant-numeric:tabular-nums}
.tile span{font-size:.85rem;color:var(--soft)}
.tile.ready{border-color:var(--ready)}.tile.unproven{border-color:var(--unproven)}
.tile.not_capable{border-color:var(--not_capable)}.tile.failing{border-color:var(--failing)}
.tile.unknown{border-color:var(--unknown)}
svg{display:block;max-width:100%;height:auto}
svg .tick{font:11.5px system-ui,sans-serif;fill:var(--soft)}
svg .marked{font:600 11.5px system-ui,sans-serif;fill:var(--ink);paint-order:stroke;
stroke:var(--card);stroke-width:4px}
svg .grid{stroke:var(--rule)}svg .mark{stroke:var(--ink);stroke-dasharray:4 3}
svg g rect{stroke:var(--card);stroke-width:1px}
svg .storm{fill:var(--accent)}
svg .ready{fill:var(--ready)}svg .unproven{fill:var(--unproven)}
svg .not_capable{fill:var(--not_capable)}svg .failing{fill:var(--failing)}
svg .unknown{fill:var(--unknown)}
figure{margin:14px 0 8px}figcaption{font-size:.88rem;margin-top:4px}
.narrow{display:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.85rem;color:var(--soft);margin:6px 0}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
i.ready{background:var(--ready)}i.unproven{background:var(--unproven)}
i.not_capable{background:var(--not_capable)}i.failing{background:var(--failing)}
i.unknown{background:var(--unknown)}
.bars{list-style:none;padding:0;font-size:.92rem;margin:12px 0}
.bars li{display:grid;grid-template-columns:220px 1fr 210px;gap:3px 12px;align-items:center;
padding:2px 0}
.bars .who{overflow-wrap:anywhere;line-height:1.25}
.bar{display:flex;gap:1px;height:14px;border-radius:3px;overflow:hidden}
.bar i{display:block;height:100%}
.scroll{overflow-x:auto;margin:8px -4px}
table{border-collapse:collapse;font-size:.9rem;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:6px 10px 6px 4px;border-bottom:1px solid var(--rule);
vertical-align:top}
th{font-weight:600;color:var(--soft);font-size:.82rem}
td.n,th.n{text-align:right;white-space:nowrap}
td.name{overflow-wrap:anywhere;min-width:6em;max-width:22em}
.evidence td.name:nth-child(3){min-width:13em}
.evidence td.name:last-child{min-width:13em}
.tag{display:inline-block;border-radius:4px;padding:0 7px;font-size:.82rem;white-space:nowrap;
border:1px solid;border-left-width:5px}
.tag.ready{border-color:var(--ready)}.tag.unproven{border-color:var(--unproven)}
.tag.not_capable{border-color:var(--not_capable)}.tag.failing{border-color:var(--failing)}
.tag.unknown{border-color:var(--unknown)}
bdi{direction:ltr}pre,code,code bdi{direction:ltr;unicode-bidi:bidi-override}
code{overflow-wrap:anywhere}
pre{background:var(--code);border-radius:8px;padding:12px 14px;overflow:auto;font-size:.86rem;
white-space:pre-wrap;overflow-wrap:anywhere;margin:8px 0 14px;max-height:24em}
summary{cursor:pointer;color:var(--accent);font-size:.94rem;margin:6px 0}
h3{font-size:1rem;margin:18px 0 4px}
@media(max-width:640px){main{padding:18px 12px 60px}section{padding:14px}
h1{font-size:1.4rem}.wide{display:none}.narrow{display:block}
.tiles{grid-template-columns:repeat(2,1fr)}
.first{grid-template-columns:1fr;gap:0}.first dd{margin-bottom:8px}
.meanings{grid-template-columns:1fr;gap:0}.meanings dd{margin-bottom:6px}
.bars li{grid-template-columns:1fr auto;padding:5px 0}.bar{grid-row:2;grid-column:1/3}
.scroll{margin:8px 0}thead{display:none}table,tbody,tr,td{display:block}
tr{border-bottom:1px solid var(--rule);padding:7px 0}
td.n,td.name{position:relative;border:0;padding:1px 0 1px 8.5em;text-align:left;min-width:0;
max-width:none;white-space:normal;overflow-wrap:anywhere}
.evidence td.name:nth-child(3),.evidence td.name:last-child{min-width:0}
td::before{content:attr(data-label);position:absolute;left:0;top:2px;color:var(--soft);
font-size:.82rem}
td:empty{display:none}
.few tr{display:grid;grid-template-columns:1fr 1fr;gap:4px 10px}
.few td.n,.few td.name{padding:0;font-size:.94em}
.few td::before{display:block;position:static}}
@media print{section{break-inside:avoid}}
"""
