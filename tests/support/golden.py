"""Frames that genuine brpc peers sent: see tests/support/golden/brpc_frames.json."""

from __future__ import annotations

import json
from pathlib import Path

_FILE = Path(__file__).parent / "golden" / "brpc_frames.json"
_RECORDS = json.loads(_FILE.read_text(encoding="utf-8"))

# (what was recorded, "c2s" client to server or "s2c" server to client) -> the bytes
FRAMES: dict[tuple[str, str], bytes] = {
    (name, way): bytes.fromhex(record[way])
    for name, record in _RECORDS.items()
    if not name.startswith("_")
    for way in ("c2s", "s2c")
    if way in record
}
