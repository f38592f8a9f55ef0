"""An explorer for a browser to visit."""

import threading

import numpy as np
import pytest
from small_models import blob, fit_quickly, wave_model, waves

from cstformer import CST, frames_to_samples


@pytest.fixture(scope="session")
def explorer(tmp_path_factory):
    """Start the explorer of a curve model and a frame model in a thread; its address."""
    pytest.importorskip("panel")
    from tornado.ioloop import IOLoop

    from cstformer.explorer.exhibits import Exhibit
    from cstformer.explorer.page import make_app
    from cstformer.explorer.server import make_server

    folder = tmp_path_factory.mktemp("explorer")
    wave_model().save(folder / "curves")
    frames = frames_to_samples(blob(), patch=(5, 3), window=5, stride=2, times=0.5 * np.arange(9), time_unit="s")
    fit_quickly(CST.preset("smoke", steps=1), frames).save(folder / "film")
    exhibits = [
        Exhibit("curves", folder / "curves", lambda model: waves()),
        Exhibit("film", folder / "film", lambda model: frames),
    ]
    ready, running = threading.Event(), {}

    def serve():
        running["loop"] = IOLoop()
        running["loop"].make_current()
        app = make_app(exhibits)
        running["open"], running["url"] = make_server(app, port=0)
        running["locked"], running["locked_url"] = make_server(app, port=0, token="a token for the tests")
        for server in (running["open"], running["locked"]):
            server.start()
        ready.set()
        running["loop"].start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(30)
    yield running
    running["loop"].add_callback(running["loop"].stop)
    thread.join(10)
