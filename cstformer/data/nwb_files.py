"""Movies in NWB files (Neurodata Without Borders): image series, their clocks, and the stimuli."""

from __future__ import annotations

import datetime
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.unread import Hdf5Array, Reordered, whole
from cstformer.errors import CSTError
from cstformer.system.extras import missing
from cstformer.system.files import check_bytes, check_hdf5, readable


def read_nwb(path: Path, key: str | None = None) -> dict[str, Any]:
    """Image series (T, H, W) of an NWB file, unread, and ``times_NAME`` of each.

    These are `ImageSeries`, `OnePhotonSeries` and `TwoPhotonSeries` among the acquisitions, or, if there are none or
    ``key`` is the name of one, in the processing modules. The file may also give ``wavelengths_NAME`` (the excitation),
    ``pixel_mm`` and ``stimulus_start``, ``_stop``, ``_contrast``.
    """
    pynwb = _pynwb()
    check_hdf5(path)
    with pynwb.NWBHDF5IO(str(path), "r") as io:
        nwb = io.read()
        found = _series(nwb, key)
        arrays: dict[str, Any] = {}
        for series in found:
            # NWB stores [frame][x][y], where x is the column.
            arrays[series.name] = Reordered(Hdf5Array.of(series.data), (0, 2, 1))
            arrays[f"times_{series.name}"] = _clock(series)
            nm = getattr(getattr(series, "imaging_plane", None), "excitation_lambda", None)
            if nm and np.isfinite(nm):
                arrays[f"wavelengths_{series.name}"] = np.array(round(float(nm)))
        return arrays | _pixel_size(found[0]) | _stimuli(nwb)


def _pynwb() -> Any:
    try:
        import pynwb
    except ImportError as error:
        raise missing(error, "an NWB file") or error from error
    return pynwb


def _series(nwb: Any, key: str | None) -> list[Any]:
    """The series with frames in the file: acquired ones, or else processed ones."""
    pynwb = _pynwb()

    def movies(items: Any) -> list[Any]:
        some = [s for s in items if isinstance(s, pynwb.image.ImageSeries)]
        return [s for s in some if s.external_file is None and s.data is not None and len(s.data.shape) == 3]

    acquired = movies(nwb.acquisition.values())
    processed = movies(s for module in nwb.processing.values() for s in module.data_interfaces.values())
    chosen = [s for s in processed if s.name == key and key not in nwb.acquisition]
    found = chosen or acquired or processed
    if not found:
        raise CSTError(
            "no ImageSeries, OnePhotonSeries or TwoPhotonSeries with frames (T, x, y); frames in external files are "
            "not read, give those files instead"
        )
    return found


def _clock(series: Any) -> np.ndarray:
    if series.timestamps is not None:
        return whole(series.timestamps)
    check_bytes("the clock of the recording", 16 * len(series.data))
    return series.starting_time + np.arange(len(series.data)) / series.rate


def _pixel_size(series: Any) -> dict[str, np.ndarray]:
    plane = getattr(series, "imaging_plane", None)
    if plane is None or plane.grid_spacing is None:
        return {}
    unit = {"meters": 1e3, "millimeters": 1.0, "micrometers": 1e-3}
    return {"pixel_mm": np.asarray(plane.grid_spacing[0] * unit.get(plane.grid_spacing_unit, 1e3))}


def _stimuli(nwb: Any) -> dict[str, np.ndarray]:
    for table in (nwb.trials, *(nwb.intervals or {}).values()):
        if table is not None and "contrast" in table.colnames:
            columns = {"start": "start_time", "stop": "stop_time", "contrast": "contrast"}
            return {f"stimulus_{n}": np.asarray(table[c][:], dtype=float) for n, c in columns.items()}
    return {}


def write_nwb(path: Path, frames: np.ndarray, times: np.ndarray, source: Path | None, description: str) -> None:
    """Write frames (T, H, W[, C]) to a new file, as `ImageSeries` ``cst`` in the processing module ``ophys``.

    If ``source`` is an NWB file, the new file has its session, subject and start time, so that both share one clock;
    the description names its identifier. Several channels become ``cst_0``, ``cst_1``, …
    """
    pynwb = _pynwb()
    about: dict[str, Any] = {"session_description": description or "frames predicted by cstformer"}
    if source is not None and source.suffix.lower() == ".nwb":
        about |= _session(source)
        description = f"{description} Predicted from {source.name}, identifier {about.pop('of')}.".strip()
    else:
        about["session_start_time"] = datetime.datetime.now(datetime.UTC)
        description = f"{description} The start of the session is unknown; that given is the time of writing.".strip()
    nwb = pynwb.NWBFile(identifier=str(uuid.uuid4()), **about)
    module = nwb.create_processing_module("ophys", "predictions of cstformer")
    channels = frames[..., None] if frames.ndim == 3 else frames
    for c in range(channels.shape[3]):
        name = "cst" if channels.shape[3] == 1 else f"cst_{c}"
        data = pynwb.H5DataIO(channels[..., c].astype(np.float32).transpose(0, 2, 1), compression="gzip")
        module.add(
            pynwb.image.ImageSeries(name=name, data=data, unit="n.a.", timestamps=times, description=description)
        )
    with pynwb.NWBHDF5IO(str(path), "w") as io:
        io.write(nwb)


def _session(path: Path) -> dict[str, Any]:
    """Arguments of `NWBFile` that say which session a file belongs to, and ``of``, its identifier."""
    pynwb = _pynwb()
    check_hdf5(path)
    with readable(path, "NWB"), pynwb.NWBHDF5IO(str(path), "r") as io:
        nwb = io.read()
        names = ("session_description", "session_start_time", "timestamps_reference_time", "session_id", "lab")
        about = {name: getattr(nwb, name) for name in names if getattr(nwb, name) is not None}
        if nwb.subject is not None:
            fields = ("subject_id", "species", "sex", "age", "genotype", "strain", "description")
            kept = {name: getattr(nwb.subject, name) for name in fields if getattr(nwb.subject, name) is not None}
            about["subject"] = pynwb.file.Subject(**kept)
        return about | {"of": nwb.identifier}
