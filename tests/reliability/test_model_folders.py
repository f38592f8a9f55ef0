"""Model folders that are saved and loaded at the same time, or that belong to somebody else."""

import os
import shutil
import stat

import numpy as np
import pytest
from processes import FORKS
from small_models import wave_model, waves

from cstformer import CST, CSTError
from cstformer.models.model_files import DESCRIPTION, WEIGHTS
from cstformer.system.tensor_files import read_tensors

NOBODY = 65534


def _save_in_turn(folder, stop):
    models = [wave_model(), wave_model(seed=3)]
    for model, mean in zip(models, (0.0, 1000.0), strict=True):
        model.kind_.scaling.mean[:] = mean  # so that a mixture of the two cannot answer as either
    turn = 0
    while not stop.is_set():
        models[turn % 2].save(folder)
        turn += 1


def test_loading_while_another_process_saves_never_mixes_two_models(tmp_path):
    """Scaling and weights are of one model: the seed in the settings tells which mean belongs to it."""
    folder, stop = tmp_path / "model", FORKS.Event()
    writer = FORKS.Process(target=_save_in_turn, args=(folder, stop))
    writer.start()
    try:
        while not folder.exists():
            assert writer.is_alive()
        weights = {}
        for _ in range(40):
            model = CST.load(folder)
            assert model.scaling_.mean[0] == (1000.0 if model.seed == 3 else 0.0)
            first = next(iter(model.network_.state_dict().values())).numpy()
            np.testing.assert_array_equal(weights.setdefault(model.seed, first), first)
    finally:
        stop.set()
        writer.join()
    assert set(weights) == {0, 3}


def test_weights_of_another_model_are_refused(tmp_path):
    for seed in (0, 3):
        wave_model(seed=seed).save(tmp_path / str(seed))
    shutil.copy(tmp_path / "3" / WEIGHTS, tmp_path / "0" / WEIGHTS)
    with pytest.raises(CSTError, match=r"model\.json and model\.safetensors are of different models; wait if"):
        CST.load(tmp_path / "0")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002], ids=oct)
def test_the_umask_decides_who_may_read_a_model(tmp_path, umask):
    before = os.umask(umask)
    try:
        wave_model().save(tmp_path / "model")
    finally:
        os.umask(before)
    for file in (tmp_path / "model" / WEIGHTS, tmp_path / "model" / DESCRIPTION):
        assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask


def _load_as_nobody(folder, pipe):
    CST.load(folder)  # what it imports may lie in a folder that only root can read
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    for read in (CST.load, lambda f: read_tensors(f / WEIGHTS)):
        try:
            pipe.send(str(read(folder)))
        except CSTError as error:
            pipe.send(str(error))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_files_of_another_user_are_there_but_may_not_be_read(tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if "pytest" not in folder.as_posix():
            break
        folder.chmod(0o755)  # others may look into it
    wave_model().save(tmp_path / "model")
    for file in (tmp_path / "model").iterdir():
        file.chmod(0o600)
    here, there = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_load_as_nobody, args=(tmp_path / "model", there))
    process.start()
    there.close()  # a worker that dies is then the end of the file, not a wait for ever
    told = [here.recv(), here.recv()]
    process.join()
    for name, message in zip((DESCRIPTION, WEIGHTS), told, strict=True):
        assert message.endswith(f"{name} may not be read: this user has no permission")


def test_a_link_to_nowhere_is_refused_before_training(tmp_path):
    (tmp_path / "model").symlink_to(tmp_path / "gone")
    waves().save(tmp_path / "curves.npz")
    from cstformer.cli import main

    assert main(["fit", str(tmp_path / "curves.npz"), "--out", str(tmp_path / "model"), "--quiet"]) == 2
    assert not (tmp_path / "model.training").exists()
    with pytest.raises(CSTError, match="link to something that does not exist"):
        wave_model().save(tmp_path / "model")
