"""Read damaged files one by one, and say for each what came of it; run by `test_fuzz` as a process of its own.

    python fuzz_worker.py FOLDER SEED FIRST LAST

A damaged file may take this process with it, so that a line is out before each file is opened. Memory is limited to
2 GB beyond what the libraries take, and time to a minute a file.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
from mutations import damaged_copy
from specimens import READERS, write_specimens

from cstformer import CSTError
from cstformer.system.memory import memory_left

SECONDS = 60


def limit_memory(extra: int) -> None:
    """Allow so many bytes more than this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def outcome(name: str, path: Path) -> tuple[str, str]:
    """``read``, ``refused`` or ``broken``, and why."""
    try:
        READERS[name](path)
    except CSTError as error:
        return "refused" if "\n" not in str(error) else "broken", str(error)
    except Exception:
        return "broken", traceback.format_exc()
    return "read", ""


def main(folder: Path, seed: int, first: int, last: int) -> None:
    healthy, work = folder / "healthy", folder / "work"
    if not healthy.exists():
        healthy.mkdir()
        write_specimens(healthy)
    warnings.simplefilter("ignore")
    for name in READERS:  # once each before the limit: libraries load late, and the healthy files must be read
        kind, why = outcome(name, healthy / name)
        print(json.dumps({"number": -1, "name": name, "outcome": kind, "why": why}), flush=True)
    strangers = [f.read_bytes() for f in sorted(healthy.iterdir()) if f.is_file()]
    limit_memory(2 * 2**30)
    names = list(READERS)
    for number in range(first, last):
        name, rng = names[number % len(names)], np.random.default_rng([seed, number])
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        if name.startswith("X_"):  # a pair, either of which may be damaged
            for part in ("X_drive.hkl", "sources_drive.hkl"):
                shutil.copy(healthy / part, work)
            part = name if rng.random() < 0.7 else "sources_drive.hkl"
            damaged_copy(healthy / part, work / part, rng, strangers)
        else:
            damaged_copy(healthy / name, work / name, rng, strangers)
        print(json.dumps({"number": number, "name": name, "outcome": "lost", "why": ""}), flush=True)
        signal.alarm(SECONDS)
        kind, why = outcome(name, work / name)
        signal.alarm(0)
        print(json.dumps({"number": number, "name": name, "outcome": kind, "why": why}), flush=True)
        if memory_left() < 2**30:  # freed memory is kept for later arrays: a new worker goes on
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
