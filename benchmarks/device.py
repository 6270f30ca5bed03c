"""`python -m benchmarks.device`: published figures of the card against the emulator's clock, as a table.

The exit code is 1 when a figure that the model must reproduce (D7.9) is more than 10 % off.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from benchmarks.device_figures import Figure, figures


def verdict(figure: Figure) -> str:
    if figure.limit:
        return f"not reproduced: {figure.limit}" if abs(figure.error) > 0.10 else f"within 10 %, though {figure.limit}"
    return "within 10 %" if figure.holds else "OFF"


def main() -> int:
    found = figures()
    table = Table(box=None, pad_edge=False)
    for name in ("computation", "switch", "unit"):
        table.add_column(name, overflow="fold")
    for name in ("paper", "emulator", "error"):
        table.add_column(name, justify="right")
    table.add_column("source")
    table.add_column("verdict", overflow="fold")
    for item in found:
        numbers = (f"{item.paper:.4g}", f"{item.emulated:.4g}", f"{item.error:+.1%}")
        table.add_row(item.what, item.switch, item.unit, *numbers, item.source, verdict(item))
    Console(width=None if sys.stdout.isatty() else 220).print(table)
    return int(not all(item.holds for item in found))


if __name__ == "__main__":
    sys.exit(main())
