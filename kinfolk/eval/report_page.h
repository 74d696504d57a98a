// The fixed parts of the report's page.
#pragma once

namespace kinfolk {

constexpr auto kReportStyle = R"css(
:root{--ground:#f6f7f9;--card:#fff;--ink:#1c2330;--soft:#5b6576;--rule:#dde2ea;--accent:#0072b2;--best:#e5f3ec;--warn:#fff4de}
@media (prefers-color-scheme:dark){:root{--ground:#12161d;--card:#1a202a;--ink:#e4e8ef;--soft:#9aa5b6;--rule:#2e3746;--accent:#56b4e9;--best:#173428;--warn:#3a2e14}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0 0 2px}h2{font-size:19px;margin:36px 0 4px}h3{font-size:15px;margin:0 0 6px}
p{margin:6px 0}.soft,figcaption{color:var(--soft);font-size:13.5px}
.card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:16px 18px;margin:12px 0;min-width:0}
.verdict{border-left:5px solid var(--accent)}.verdict>p{font-size:18px;line-height:1.45;margin:0}.verdict ul{margin:10px 0 0;padding-left:20px}
.warn{background:var(--warn)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:14px;margin:12px 0}
.grid>.card{margin:0}figure{margin:0}figcaption{margin-top:8px}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(210px,1fr));gap:14px;margin:12px 0}.pictures>.card{margin:0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap;vertical-align:top}
th:first-child,td:first-child{text-align:left;white-space:normal;min-width:170px}
th{color:var(--soft);font-weight:600;font-size:13px;vertical-align:bottom}table.sort th{cursor:pointer}table.sort th:hover{color:var(--ink)}
th[data-order="1"]::after{content:" \25B2"}th[data-order="-1"]::after{content:" \25BC"}
tr.best td{background:var(--best)}td small{display:block;color:var(--soft);font-size:12.5px}
.dot{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:7px}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.5 ui-monospace,Menlo,Consolas,monospace}
.sample{max-height:270px;overflow:auto}.sample b{color:var(--accent);font-weight:600}
details{margin-top:10px}summary{cursor:pointer;color:var(--soft)}
@media print{.card{break-inside:avoid}}
)css";

constexpr auto kReportScript = R"js(
document.querySelectorAll('table.sort th').forEach(function(head){head.onclick=function(){
  var row=head.parentNode,body=row.closest('table').tBodies[0],at=head.cellIndex,order=head.dataset.order=='1'?-1:1;
  for(var h of row.cells)delete h.dataset.order;
  head.dataset.order=order;
  Array.from(body.rows).sort(function(a,b){
    var x=a.cells[at].dataset.value,y=b.cells[at].dataset.value,u=parseFloat(x),v=parseFloat(y);
    if(x===''||y==='')return (x==='')-(y==='');
    return order*(isNaN(u)||isNaN(v)?x.localeCompare(y):u-v);
  }).forEach(function(r){body.appendChild(r)});
}});
)js";

constexpr auto kReportGlossary = R"html(
<dl>
<dt>bits per byte</dt><dd>How many bits the model needs, on average, to predict the next byte of text it never saw. Lower is better;
8 is guessing blindly, and one bit less means that the model gives the right byte twice the probability.</dd>
<dt>spread</dt><dd>The standard deviation over runs that differ in nothing but the random seed. Differences smaller than that mean nothing.</dd>
<dt>error bar</dt><dd>One standard error over the pieces of the evaluation text: another text of the same kind would give a figure about that far away.</dd>
<dt>evaluation length</dt><dd>How much text is read as one sequence. <b>stream</b>: the member carries its state or memory through the whole
length. <b>blocks of N</b>: it cannot go beyond N positions, so it forgets all at every block's start.</dd>
<dt>by position</dt><dd>The quality at a place in the sequence, counted from its start. A curve that keeps falling shows that far context is used; one that
rises shows a member that is lost beyond the length it was trained on.</dd>
<dt>work</dt><dd>Floating-point operations of the training, forward and backward, recomputation not counted.</dd>
<dt>state</dt><dd>What one session keeps between two calls while it generates.</dd>
</dl>
)html";

}  // namespace kinfolk
