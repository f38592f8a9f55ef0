"""``cst data show``: movies; samples are shown in test_make_data.py, bad files refused in test_fit.py."""

import numpy as np
from small_models import blob


def test_a_movie_is_described(cst, tmp_path):
    movie = blob(10, 10, 9)
    movie[0, 0, 0] = np.nan
    np.savez(tmp_path / "movie.npz", movie=movie, times=np.arange(10) * 0.1)
    code, out, _ = cst("data", "show", tmp_path / "movie.npz")
    assert code == 0
    assert "movie of 10 frames of 10 × 9 (float64), times 0 to 0.9" in out
    assert "values 100 to 150" in out
    assert "--patch 8,8 --window 10 --stride 5" in out
