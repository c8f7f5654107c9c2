"""A trace as a tree, with the alerts in it."""

from collections.abc import Sequence
from pathlib import PurePath

from rich.text import Text
from rich.tree import Tree

from otelctx.cli.store import Event, Span

ALERT = "otelctx.mismatch"


def alerts(span: Span) -> list[Event]:
    """The mismatches that the span shows."""
    return [event for event in span.events if event.name == ALERT]


def trace_tree(spans: Sequence[Span], shown: Sequence[str]) -> Tree:
    """The spans of one trace as a tree, in the order of their starts.

    `shown` names the attributes to show beside a span, in that order. A span whose parent is not among `spans` hangs
    from the top. The tree holds plain text only: what a value holds is never taken for markup.
    """
    roots = {span.trace_id for span in spans}
    tree = Tree(Text("trace " + ", ".join(sorted(roots)), style="dim"), guide_style="dim")
    known = {span.span_id for span in spans}
    branches = {span.span_id: Tree(_label(span, shown), guide_style="dim") for span in spans}
    for span in sorted(spans, key=lambda span: span.start):
        branch = branches[span.span_id]
        for alert in alerts(span):
            branch.add(_alert(alert))
        above = branches[span.parent_id] if span.parent_id in known and span.parent_id != span.span_id else tree
        above.children.append(branch)
    return tree


def _label(span: Span, shown: Sequence[str]) -> Text:
    label = Text(span.name, style="bold red" if span.failed else "bold")
    label.append(f"  {(span.end - span.start) / 1e6:.1f} ms", style="dim")
    for name in shown:
        if name in span.attributes:
            label.append(f"  {name}=", style="dim")
            label.append(str(span.attributes[name]), style="cyan")
    return label


def _alert(alert: Event) -> Text:
    """What is wrong, where the wrong value came from, and how the work got here."""

    def value(name: str, missing: str) -> str:
        return str(alert.attributes.get(name, missing))

    label = Text(
        f"! {ALERT}: {value('otelctx.mismatch.reason', 'unknown')} {value('otelctx.key', 'key')}", "bold yellow"
    )
    label.append(f" ({value('otelctx.mismatch.action', 'observed')})", style="yellow")
    label.append("\n  expected ", style="dim").append(value("otelctx.mismatch.expected", "nothing"), style="green")
    label.append(", observed ", style="dim").append(value("otelctx.mismatch.observed", "nothing"), style="red")
    if "otelctx.mismatch.source" in alert.attributes:
        label.append("\n  read from ", style="dim").append(value("otelctx.mismatch.source", ""), style="red")
    trail = alert.attributes.get("otelctx.hop.trail")
    for hop in trail if isinstance(trail, list) else ():
        label.append(f"\n  over {hop}", style="dim")
    if "code.function.name" in alert.attributes:
        file = PurePath(value("code.file.path", "")).name
        place = f"{value('code.function.name', '')} ({file}:{value('code.line.number', '?')})"
        label.append(f"\n  departed from {place}", style="dim")
    return label
