"""Where a run leaves what."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "demo-run"
REPLAY = RUN / "replay"
CHECKPOINTS = RUN / "checkpoints"
SHEET = RUN / "contact-sheet.png"
