"""What the product does, measured; `papers` repeats what five papers did."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""
RESULTS = ROOT / "benchmarks" / "results"
"""The recorded results, a JSON file each."""
