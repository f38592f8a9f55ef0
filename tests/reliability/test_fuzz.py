"""Damaged files of every kind: read, or refused by our own error in one line; nothing else, and nothing lost."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def fuzz(folder: Path, seed: int, count: int) -> list[dict]:
    """What became of each file; a worker that dies, hangs or is short of memory is followed by another."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"}
    fates: dict[int, dict] = {}
    while len(fates) < count:
        command = [sys.executable, str(HERE / "fuzz_worker.py"), str(folder), str(seed), str(len(fates)), str(count)]
        with (folder / "errors.txt").open("w") as errors:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        healthy = [line for line in lines if line["number"] < 0]
        assert healthy and all(line["outcome"] == "read" for line in healthy), healthy
        before = len(fates)
        fates |= {line["number"]: line | {"code": done.returncode} for line in lines if line["number"] >= 0}
        assert len(fates) > before, (folder / "errors.txt").read_text()[-2000:]
    return list(fates.values())


def check(fates: list[dict]) -> None:
    bad = [f"{f['name']} number {f['number']}, exit code {f['code']}: {f['why'][-800:]}" for f in fates
           if f["outcome"] not in ("read", "refused")]  # fmt: skip
    assert not bad, f"{len(bad)} of {len(fates)} files:\n" + "\n\n".join(bad[:5])
    refused = collections.Counter(f["name"] for f in fates if f["outcome"] == "refused")
    assert len(refused) == len({f["name"] for f in fates}), "some kind of file was never really damaged"
    print(f"{len(fates)} damaged files of {len(refused)} kinds: {refused.total()} refused, the others read")


def test_two_hundred_damaged_files(tmp_path):
    check(fuzz(tmp_path, seed=2, count=243))


@pytest.mark.long
def test_ten_thousand_damaged_files(tmp_path):
    check(fuzz(tmp_path, seed=3, count=10_000))
