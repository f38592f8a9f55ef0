"""Frames come back as they were written, from every kind of file, and without filling memory."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from cstformer.datasets.video import Clips, Recording, fit_frame, open_videos, split_recordings
from cstformer.errors import CSTError

SMALL = (8, 10)


def movie(length=12, size=SMALL, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (length, *size, 3), dtype=np.uint8)


def smooth_movie(length, size=(48, 60)):
    """A brightness that differs by 15 or more from that of the next frames, which lossy coding cannot hide."""
    level = (np.arange(length) * 37) % 200 + 20
    return np.broadcast_to(level.astype(np.uint8)[:, None, None, None], (length, *size, 3))


def recording(length, name="a"):
    """Frame i is filled with i."""
    return Recording(name, length, lambda a, b: (np.full((*SMALL, 3), i, np.uint8) for i in range(a, b)), SMALL)


def write_film(path, frames, codec, **options):
    av = pytest.importorskip("av")
    with av.open(path, "w") as container:
        stream = container.add_stream(codec, rate=10, options={k: str(v) for k, v in options.items()})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode())


# --- The frame ---


def test_frames_of_the_right_size_are_untouched():
    frame = movie(1, (128, 160))[0]
    assert np.array_equal(fit_frame(frame), frame)


def test_the_centre_columns_remain():
    """KITTI's 375 × 1242 becomes 128 × 424, of which columns 132 to 291 remain."""
    frame = np.zeros((375, 1242, 3), np.uint8)
    column = (np.arange(1242) + 0.5) * 424 / 1242  # where each column goes
    frame[:, (column >= 132) & (column < 292)] = 255
    fitted = fit_frame(frame)
    assert fitted.shape == (128, 160, 3)
    assert fitted[:, 2:-2].min() == 255 and fitted[:, [0, -1]].min() > 100
    assert fit_frame(255 - frame)[:, 2:-2].max() == 0


def test_resizing_averages():
    """Halving black and white stripes gives grey: no pixel is merely dropped."""
    frame = np.zeros((32, 40, 3), np.uint8)
    frame[::2] = 255
    inner = fit_frame(frame, (16, 20))[2:-2]
    assert np.abs(inner.astype(int) - 127).max() < 35 and abs(inner.mean() - 127.5) < 2


def test_a_narrow_frame_is_refused():
    with pytest.raises(CSTError, match="240 × 200 pixels is 107 columns wide at height 128, fewer than 160"):
        fit_frame(np.zeros((240, 200, 3), np.uint8))


# --- PredNet's files, in the layouts of several versions of the library that wrote them ---

SOURCES = ["city-1"] * 4 + ["road-2"] * 5 + ["road-10"] * 3


def sources_as_array(file):
    file["data_0"] = np.array([s.encode() for s in SOURCES], dtype=object)


def sources_as_group(file):
    """A group with one item each; repeats refer to the first."""
    first: dict = {}
    for i, source in enumerate(SOURCES):
        key = f"data/data{i}"
        if source in first:
            file.create_dataset(key, data=first[source], dtype=h5py.ref_dtype)
        else:
            file[key] = np.frombuffer(source.encode(), "S1")[None]
            first[source] = file[key].ref


def write_hickle(folder, write_sources=sources_as_array, key="data_0"):
    frames = movie()
    with h5py.File(folder / "X_train.hkl", "w") as file:
        file[key] = frames
    with h5py.File(folder / "sources_train.hkl", "w") as file:
        write_sources(file)
        file.create_group("hickle_types_table")
    return frames


@pytest.mark.parametrize(("write", "key"), [(sources_as_array, "data_0"), (sources_as_group, "data")])
def test_prednet_files(tmp_path, write, key):
    frames = write_hickle(tmp_path, write, key)
    found = open_videos(tmp_path / "X_train.hkl", size=SMALL)
    assert [(r.name, r.length) for r in found] == [("city-1", 4), ("road-2", 5), ("road-10", 3)]
    assert np.array_equal(found[1].frames(1, 4), frames[5:8].astype(np.float32) / 255)
    assert found[1].frames(1, 4).dtype == np.float32
    assert Clips(found, length=3, stride=2).names == ["city-1@0", "road-2@0", "road-2@2", "road-10@0"]


def test_prednet_files_need_their_sources(tmp_path):
    write_hickle(tmp_path)
    (tmp_path / "sources_train.hkl").unlink()
    with pytest.raises(CSTError, match=r"X_NAME.hkl and have sources_NAME.hkl beside it"):
        open_videos(tmp_path / "X_train.hkl")
    with h5py.File(tmp_path / "sources_train.hkl", "w") as file:
        file["data_0"] = np.array([b"a"] * 11, dtype=object)
    with pytest.raises(CSTError, match=r"names 11 frames, but X_train\.hkl has 12"):
        open_videos(tmp_path / "X_train.hkl")


def test_prednet_files_hold_bytes(tmp_path):
    write_hickle(tmp_path)
    with h5py.File(tmp_path / "X_train.hkl", "w") as file:
        file["data_0"] = movie().astype(float)
    with pytest.raises(CSTError, match="must hold one uint8 array"):
        open_videos(tmp_path / "X_train.hkl")


def test_a_source_in_two_places_is_refused(tmp_path):
    write_hickle(tmp_path)
    with h5py.File(tmp_path / "sources_train.hkl", "w") as file:
        file["data_0"] = np.array([b"a"] * 4 + [b"b"] * 4 + [b"a"] * 4, dtype=object)
    with pytest.raises(CSTError, match="two recordings are called 'a'"):
        open_videos(tmp_path / "X_train.hkl")


# --- Folders, arrays, films ---


def test_folders_of_pictures(tmp_path):
    frames = movie(12)
    for drive, part in (("drive_2", frames[:11]), ("drive_10", frames[11:])):
        for camera in ("image_02", "image_03"):
            folder = tmp_path / drive / camera
            folder.mkdir(parents=True)
            for i, frame in enumerate(part):
                Image.fromarray(frame if camera == "image_03" else 255 - frame).save(folder / f"{i}.png")
    (tmp_path / "drive_2" / "notes.txt").write_text("not a frame")
    found = open_videos(tmp_path, size=SMALL, only="*image_03")
    assert [(r.name, r.length) for r in found] == [("drive_2/image_03", 11), ("drive_10/image_03", 1)]
    assert np.array_equal(found[0].frames(8, 11), frames[8:11].astype(np.float32) / 255)  # 8, 9, 10: not 8, 9, 1
    assert len(open_videos(tmp_path, size=SMALL)) == 4
    with pytest.raises(CSTError, match=r"called like '\*image_05'"):
        open_videos(tmp_path, only="*image_05")


def test_pictures_of_other_kinds(tmp_path):
    grey, fine = np.arange(80, dtype=np.uint8).reshape(SMALL), tmp_path / "fine"
    Image.fromarray(grey).save(tmp_path / "0.png")
    got = open_videos(tmp_path, size=SMALL)[0]
    assert got.name == tmp_path.name and np.array_equal(got.frames(0, 1)[0, ..., 2] * 255, grey)
    fine.mkdir()
    Image.fromarray(np.full(SMALL, 60000, np.uint16)).save(fine / "0.png")
    with pytest.raises(CSTError, match="more than 8 bits"):
        open_videos(fine, size=SMALL)[0].frames(0, 1)
    (fine / "0.png").write_bytes(b"no picture")
    with pytest.raises(CSTError, match=r"0\.png as a picture"):
        open_videos(fine, size=SMALL)[0].frames(0, 1)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays(tmp_path, save):
    colour, grey = movie(12), movie(5, seed=1)[..., 0]
    save(tmp_path / "two.npz", drive_a=colour, t=np.arange(12.0), drive_b=grey)
    a, b = open_videos(tmp_path / "two.npz", size=SMALL)
    assert (a.name, a.length, b.name, b.length) == ("drive_a", 12, "drive_b", 5)
    assert np.array_equal(a.frames(9, 12) * 255, colour[9:12])
    assert np.array_equal(b.frames(0, 5) * 255, np.repeat(grey[..., None], 3, -1))


def test_arrays_that_are_no_video(tmp_path):
    np.savez(tmp_path / "no.npz", frames=movie().astype(float))
    with pytest.raises(CSTError, match=r"uint8 arrays .* found frames float64 \(12, 8, 10, 3\)"):
        open_videos(tmp_path / "no.npz")
    np.savez(tmp_path / "turned.npz", frames=np.asfortranarray(movie()))
    with pytest.raises(CSTError, match="stored column by column"):
        open_videos(tmp_path / "turned.npz", size=SMALL)[0].frames(0, 1)


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [("a.mp4", "libx264", {"g": 12, "bf": 3}), ("a.avi", "mpeg4", {"g": 12, "bf": 2}), ("a.avi", "mjpeg", {})],
)
def test_films_give_the_frame_that_is_asked_for(tmp_path, name, codec, options):
    frames = smooth_movie(60)
    write_film(tmp_path / name, frames, codec, **options)
    (film,) = open_videos(tmp_path / name, size=(48, 60))
    assert (film.name, film.length) == ("a", 60)
    for start, stop in ((0, 60), (37, 41), (59, 60), (3, 13)):
        got = film.frames(start, stop).mean((1, 2, 3)) * 255
        assert got == pytest.approx(frames[start:stop, 0, 0, 0], abs=12)


def test_a_damaged_film(tmp_path):
    write_film(tmp_path / "a.avi", movie(40, (48, 60)), "mpeg4")
    whole = (tmp_path / "a.avi").read_bytes()
    (film,) = open_videos(tmp_path / "a.avi", size=(48, 60))
    (tmp_path / "a.avi").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CSTError, match=r"a\.avi"):
        film.frames(30, 40)
    (tmp_path / "b.mp4").write_bytes(b"nothing")
    with pytest.raises(CSTError, match=r"cannot read .*b\.mp4 as a \.mp4 video"):
        open_videos(tmp_path / "b.mp4")


def test_wrong_paths(tmp_path):
    with pytest.raises(CSTError, match=r"unknown kind of video file '\.gif'"):
        open_videos(tmp_path / "a.gif")
    with pytest.raises(CSTError, match="there is no such file"):
        open_videos(tmp_path / "a.mp4")
    with pytest.raises(CSTError, match="has no pictures"):
        open_videos(tmp_path)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.mp4").write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(CSTError, match=r"a\.mp4: reading this video needs av; pip install .cstformer\[video\]"):
        open_videos(tmp_path / "a.mp4")


# --- Clips and the split ---


def test_clips_are_consecutive_and_stay_in_their_recording():
    clips = Clips([recording(25, "a"), recording(9, "short"), recording(13, "b")], stride=5)
    assert clips.names == ["a@0", "a@5", "a@10", "a@15", "b@0"]
    assert clips[2][:, 0, 0, 0] * 255 == pytest.approx(np.arange(10, 20))
    assert [len(clip) for clip in clips] == [10] * 5
    with pytest.raises(CSTError, match="none of 1 recordings has 10 frames"):
        len(Clips([recording(9)]))


def test_frames_beyond_the_end():
    for start, stop in ((0, 6), (-1, 3), (3, 3)):
        with pytest.raises(CSTError, match=f"frames {start} to {stop} of a do not exist; it has 5"):
            recording(5).frames(start, stop)


def test_split_keeps_recordings_whole_and_shares_frames():
    recordings = [recording(length, str(length)) for length in (10, 20, 30, 40, 50, 60, 70, 80)]
    for seed in range(5):
        train, test = split_recordings(recordings, 0.7, seed)
        assert sorted(r.length for r in [*train, *test]) == list(range(10, 90, 10))
        assert sum(r.length for r in train) / 360 == pytest.approx(0.7, abs=0.12)
    assert split_recordings(recordings, seed=1) == split_recordings(recordings, seed=1)
    assert [len(part) for part in split_recordings(recordings[:2])] == [1, 1]
    longest = max(recordings, key=lambda r: r.length)
    assert split_recordings(recordings, 0.6, seed=None)[0][0] is longest
    with pytest.raises(CSTError, match="of 1 recordings is no split"):
        split_recordings(recordings[:1])


# --- Memory ---

PEAK = """
import resource, sys
from cstformer.datasets.video import Clips, open_videos
clips = Clips(open_videos(sys.argv[1], size=(128, 160)))
clips[0]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for i in range(0, len(clips), int(sys.argv[2])):
    clips[i]
print(len(clips), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def growth(path, step):
    """Clips of a file, and by how many MB reading them raised the peak memory of a process."""
    out = subprocess.run([sys.executable, "-c", PEAK, path, str(step)], capture_output=True, text=True, check=True)
    count, megabytes = out.stdout.split()
    return int(count), float(megabytes)


def test_an_hour_of_video_does_not_enter_memory(tmp_path):
    """36 000 frames are 2.2 GB; the file is sparse, so that it takes no room on the disk."""
    with h5py.File(tmp_path / "X_hour.hkl", "w") as file:
        file.create_dataset("data_0", (36_000, 128, 160, 3), "u1")
    with h5py.File(tmp_path / "sources_hour.hkl", "w") as file:
        file["data_0"] = np.array([b"one"] * 36_000, dtype=object)
    assert os.stat(tmp_path / "X_hour.hkl").st_blocks * 512 < 2**20
    count, megabytes = growth(tmp_path / "X_hour.hkl", 30)
    assert count == 3600 and megabytes < 30


def test_reading_through_a_film_or_an_array_does_not_fill_memory(tmp_path):
    """600 frames are 37 MB as bytes, 147 MB as floats."""
    frames = smooth_movie(600, (128, 160))
    write_film(tmp_path / "a.mp4", frames, "mpeg4")
    np.savez(tmp_path / "a.npz", frames=frames)
    for name in ("a.mp4", "a.npz"):
        count, megabytes = growth(tmp_path / name, 2)
        assert count == 60 and megabytes < 20, name


# --- The real thing ---


def test_real_kitti_frames():
    path = Path(os.environ.get("CST_DATA", "."), "kitti", "kitti_10hz_rgb_128x160.npz")
    if not path.exists():
        pytest.skip("CST_DATA names no folder with kitti/kitti_10hz_rgb_128x160.npz")
    found = open_videos(path)
    assert [(r.name, r.length) for r in found] == [("drive_a", 78), ("drive_b", 91)]
    train, test = (Clips(part) for part in split_recordings(found))
    assert sorted((len(train), len(test))) == [7, 9]
    clip = test[0]
    assert clip.shape == (10, 128, 160, 3) and clip.min() >= 0 and clip.max() <= 1
    assert 0.05 < clip.var() < 0.2
