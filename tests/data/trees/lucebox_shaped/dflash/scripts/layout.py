"""Where things are, seen from this file."""

from pathlib import Path

PROGRAM = Path(__file__).resolve().parent.parent / "build" / "test_dflash"
