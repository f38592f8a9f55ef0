"""The explorer's page: choice of model and sample, its view, uploads, downloads and links."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any
from urllib.parse import urlencode

import panel as pn

from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning
from cstformer.explorer.curve_view import CurveView
from cstformer.explorer.exhibits import Exhibit
from cstformer.explorer.field_view import FieldView
from cstformer.explorer.files import MAX_UPLOAD, UPLOADS, as_csv, as_netcdf, buffer, read_upload
from cstformer.explorer.query import chosen
from cstformer.explorer.widgets import WIDE, html

LOG = logging.getLogger("cstformer.explorer")
APOLOGY = "Something went wrong. The log of cst explore has the details; reload the page to continue."
UPLOADED = "uploaded: "


class Dropper(pn.widgets.FileDropper):
    """A file dropper that enforces the size limit on the server, whatever the browser sends."""

    refuse: Callable[[str], None]
    """Called with the reason if a file is refused."""

    def _process_event(self, event: Any) -> None:
        held = sum(len(part) for parts in self._file_buffer.values() for part in parts)
        if event.event_name == "upload_event" and held + len(event.data["data"]) > MAX_UPLOAD:
            self._file_buffer.clear()
            self.refuse(f"{event.data['name']} has more than the {MAX_UPLOAD // 2**20} MB allowed")
        elif event.event_name != "upload_event" or event.data["chunk"] == 1 or event.data["name"] in self._file_buffer:
            super()._process_event(event)


class Page:
    """The page of one visitor; `view` is its root."""

    def __init__(self, exhibits: Sequence[Exhibit], query: Mapping[str, str]) -> None:
        self.exhibits = {exhibit.label: exhibit for exhibit in exhibits}
        self.uploads: dict[str, Samples] = {}
        self._query = dict(query)
        self._listing = False
        labels = list(self.exhibits)
        label = chosen(query, "model", labels, labels[0])
        self.model = pn.widgets.Select(label="Model", options=labels, value=label, visible=len(labels) > 1, **WIDE)
        self.sample = pn.widgets.Select(label="Sample", options=[], **WIDE)
        self.message = html("", css_classes=["message"], visible=False)
        self.drop = Dropper(
            accepted_filetypes=list(UPLOADS), max_file_size=f"{MAX_UPLOAD // 2**20}MB", height=76, **WIDE
        )
        self.drop.refuse = self.say
        self.address = pn.widgets.TextInput(visible=False)
        self.address.jscallback(value="window.history.replaceState(null, '', cb_obj.value || window.location.pathname)")
        self.copy = pn.widgets.Button(label="Copy link to this view", **WIDE)
        self.copy.js_on_click(
            code="if (navigator.clipboard) navigator.clipboard.writeText(window.location.href); "
            "else window.prompt('Link to this view', window.location.href)"
        )
        self.picks, self.extras, self.main = (pn.Column(**WIDE) for _ in range(3))
        self.shown: Any = None
        self.view = self._layout()
        self._loaded = False
        self.act(self.open)()
        pn.state.onload(self._arrive)
        self.model.param.watch(self.act(lambda event: self.open()), "value")
        self.sample.param.watch(self.act(lambda event: self.show()), "value")
        self.drop.param.watch(self.act(lambda event: self.receive()), "value")

    def _layout(self) -> pn.viewable.Viewable:
        downloads = [
            pn.widgets.FileDownload(
                callback=functools.partial(self._download, write),
                filename=f"prediction.{suffix}",
                label=f"Download {name}",
                **WIDE,
            )
            for suffix, name, write in (("csv", "CSV", as_csv), ("nc", "NetCDF", as_netcdf))
        ]
        pick = pn.Column(self.model, self.sample, self.picks, css_classes=["pick"], **WIDE)
        rest = pn.Column(
            self.extras,
            html("<h2>Your own data</h2>"),
            self.drop,
            html(f"<p class='hint'>{', '.join(UPLOADS)}, at most {MAX_UPLOAD // 2**20} MB, read as data only.</p>"),
            html("<h2>Save or share</h2>"),
            pn.Row(*downloads, css_classes=["buttons"], **WIDE),
            self.copy,
            self.address,
            css_classes=["rest"],
            **WIDE,
        )
        main = pn.Column(self.message, self.main, css_classes=["main"], **WIDE)
        title = "<h1>cstformer explorer</h1><p class='kicker'>Continuous Spatiotemporal Transformer</p>"
        body = pn.Column(pick, main, rest, css_classes=["body"], **WIDE)
        return pn.Column(html(f"<header>{title}</header>"), body, css_classes=["page"], **WIDE)

    # Events

    def act(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a callback: errors and warnings become a message in the page, never a traceback."""

        @functools.wraps(work)
        def safe(*args: Any) -> Any:
            try:
                with warnings.catch_warnings(record=True) as told, pn.io.hold():
                    warnings.simplefilter("always", CSTWarning)
                    self.say("")
                    work(*args)
                    if notes := [str(w.message) for w in told if issubclass(w.category, CSTWarning)]:
                        self.say(notes[-1], kind="note")
            except CSTError as error:
                self.say(str(error))
            except Exception:
                LOG.exception("an action in the explorer failed")
                self.say(APOLOGY)
            self._write_address()

        return safe

    def say(self, text: str, kind: str = "error") -> None:
        """Show a message, or hide it if the text is empty."""
        self.message.visible = bool(text)
        self.message.object = f"<div role='alert' class='{kind}'>{escape(text)}</div>" if text else ""

    def open(self) -> None:
        """Load the chosen model and list its samples."""
        self.shown, self.main[:], self.picks[:], self.extras[:] = None, [], [], []
        exhibit = self.exhibits[self.model.value]
        exhibit.model  # noqa: B018  (load it now, so that a damaged model is reported before anything else)
        self.uploads.clear()
        samples = exhibit.samples
        options = [] if samples is None else [str(i) for i in samples.sample_ids]
        first = chosen(self._query, "sample", options, options[0]) if options else None
        self._listing = True
        self.sample.param.update(options=options, value=first)
        self._listing = False
        if not options:
            self.say("This model has no data. Drop a file on the left to see the predictions for it.", "note")
            return
        self.show()

    def show(self) -> None:
        """Show the chosen sample."""
        if self.sample.value is None or self._listing:
            return
        exhibit = self.exhibits[self.model.value]
        samples, name = exhibit.samples, self.sample.value
        if name.startswith(UPLOADED):
            samples, name = self.uploads["samples"], name.removeprefix(UPLOADED)
        assert samples is not None
        index = [str(i) for i in samples.sample_ids].index(name)
        query = self._query if self.shown is None else self.shown.state()
        if exhibit.model.layout_ is not None:
            stimulus = None if self.sample.value.startswith(UPLOADED) else exhibit.stimulus
            self.shown = FieldView(exhibit.model, samples[index], query, self.act, stimulus)
        elif samples.d == 1:
            self.shown = CurveView(exhibit.model, samples[index], query, self.act)
        else:
            raise CSTError(f"the explorer shows curves and frames; this model has {samples.d} axes and no frames")
        self.picks[:], self.extras[:], self.main[:] = self.shown.picks, self.shown.extras, self.shown.main

    def receive(self) -> None:
        """Read an uploaded file and show its first sample."""
        files = dict(self.drop.value)
        if not files:
            return
        self.drop.value.clear()
        name, content = files.popitem()
        data = content.encode() if isinstance(content, str) else content
        samples = read_upload(name, data, self.exhibits[self.model.value].model)
        self.uploads["samples"] = samples
        own = [f"{UPLOADED}{i}" for i in samples.sample_ids]
        others = [option for option in self.sample.options if not option.startswith(UPLOADED)]
        self.sample.param.update(options=[*own, *others], value=own[0])

    def _download(self, write: Callable[[Samples], bytes]) -> Any:
        content = b""

        def work() -> None:
            nonlocal content
            if self.shown is None:
                raise CSTError("nothing to download yet; choose a sample first")
            content = write(self.shown.prediction())

        self.act(work)()
        return buffer(content)

    def _arrive(self) -> None:
        """Called when the page is loaded: from now on its address follows the view, without the token."""
        self._loaded = True
        self._write_address()

    def _write_address(self) -> None:
        if self.shown is None or not self._loaded:
            return
        state = {"model": self.model.value if len(self.exhibits) > 1 else "", "sample": self.sample.value or ""}
        state |= self.shown.state()
        if state["sample"].startswith(UPLOADED):
            state = {}
        self.address.value = "?" + urlencode({k: v for k, v in state.items() if v})


def make_app(exhibits: Sequence[Exhibit]) -> Callable[[], Any]:
    """Return a function that builds the page of one visitor."""
    pn.extension("filedropper", raw_css=[resources.files("cstformer.explorer").joinpath("page.css").read_text()])

    def app() -> Any:
        try:
            given = pn.state.session_args or {}
            query = {name: values[0].decode(errors="replace") for name, values in given.items() if values}
            return Page(exhibits, query).view
        except Exception:
            LOG.exception("the page could not be built")
            return pn.pane.HTML(f"<p role='alert'>{APOLOGY}</p>")

    return app
