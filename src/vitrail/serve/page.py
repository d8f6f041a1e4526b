"""The server's pages: the demo and the API documentation; no build step, no external resources."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.data.findings import number_of
from vitrail.interpret.viewer import page as viewer
from vitrail.report import page
from vitrail.serve.hosting import HostedModel, Hosting
from vitrail.serve.settings import ServeSettings

FOLDER = Path(__file__).with_name("static")
SCRIPT_TYPE, STYLE_TYPE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"


STATIC_FILES: dict[str, tuple[str, str]] = {
    "page.css": (page.STYLE, STYLE_TYPE),
    "viewer.css": (viewer.STYLE, STYLE_TYPE),
    # The viewer of the pages that `vitrail explain` writes.
    "viewer.js": (viewer.SCRIPT, SCRIPT_TYPE),
    **{path.name: (path.read_text(encoding="utf-8"), STYLE_TYPE) for path in FOLDER.glob("*.css")},
    **{path.name: (path.read_text(encoding="utf-8"), SCRIPT_TYPE) for path in FOLDER.glob("*.js")},
}
"""Files of the pages by name: content and type."""

TITLE_LINE = "<h1>{{title}}</h1>\n"  # of the viewer; the page has its own heading


def front_page(hosting: Hosting, settings: ServeSettings, chosen: str | None) -> str:
    """Return the demo page of a model.

    Args:
        settings: tell whether a token is required, and the maximum upload.
        chosen: name of the model; by default, and if unknown, the first.
    """
    models = list(hosting.models.values())
    model = hosting.models.get(chosen or "", models[0])
    bar = _bar(models, model, has_token=settings.token is not None)
    if model.state != "ready":
        body = bar + _not_ready(model, shows_reason=settings.token is None)
        refresh = '<meta http-equiv="refresh" content="2">' if model.state == "loading" else ""
        return _frame(model.name, body, ("live.css",), ("live.js",), model, settings, head=refresh)
    is_text = model.facts.get("reads_text", False)
    view = viewer.BODY.replace(TITLE_LINE, "").replace("{{stills}}", "")
    form = _text_form(model) if is_text else _image_form(model)
    body = f'{bar}{form}<div id="result" hidden>{view}</div>{viewer.data_element()}'
    scripts = ("viewer.js", "live.js", "live_texts.js" if is_text else "live_images.js")
    return _frame(model.name, body, ("viewer.css", "live.css"), scripts, model, settings)


def docs_page() -> str:
    """Return the API documentation page of /openapi.json."""
    body = (
        '<h1>API</h1><p class="soft">Generated from <a href="openapi.json">openapi.json</a>. '
        '<a href="./">Try the models</a></p><p id="about"></p><div id="operations">'
        "<noscript>This page needs JavaScript.</noscript></div>"
    )
    return _frame("API", body, ("docs.css",), ("docs.js",), None, None)


def _frame(
    title: str,
    body: str,
    styles: tuple[str, ...],
    scripts: tuple[str, ...],
    model: HostedModel | None,
    settings: ServeSettings | None,
    *,
    head: str = "",
) -> str:
    links = "".join(f'<link rel="stylesheet" href="static/{name}">' for name in ("page.css", *styles))
    tags = "".join(f'<script src="static/{name}"></script>' for name in scripts)
    attributes = ""
    if model is not None and settings is not None:
        can_explain = "yes" if model.facts.get("can_explain") else "no"
        attributes = (
            f' data-model="{escape(model.name)}" data-options="{" ".join(model.facts.get("options", ()))}"'
            f' data-can-explain="{can_explain}" data-max-bytes="{settings.max_upload_bytes}"'
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,">{head}<title>{escape(title)} - Vitrail</title>{links}</head>\n'
        f"<body{attributes}><main>\n{body}\n</main>{tags}</body></html>\n"
    )


def _bar(models: list[HostedModel], current: HostedModel, *, has_token: bool) -> str:
    options = "".join(
        f'<option value="{escape(model.name)}"{" selected" if model is current else ""}>'
        f"{escape(model.name)}{'' if model.state == 'ready' else f' ({model.state})'}</option>"
        for model in models
    )
    token = (
        '<form id="token-form"><label>Token <input id="token" type="password" size="18" '
        'autocomplete="current-password"></label> <button>Use</button></form>'
        if has_token
        else ""
    )
    return (
        f'<header class="topbar"><h1>{escape(current.name)}</h1>'
        f'<label class="chosen">Model <select id="model">{options}</select></label>{token}'
        f'<span class="grow"></span><a href="docs">API</a>'
        f'<span class="soft small">Vitrail {__version__}</span></header>'
    )


def _image_form(model: HostedModel) -> str:
    facts = model.facts
    height, width = facts["image_size"]
    answers = "any names" if "labels" in facts["options"] else "captions"
    if "classes" in facts:
        answers = number_of(len(facts["classes"]), "class")
    what = f"{facts['family'] or facts['engine']}, {answers}, {width} x {height} pixels"
    return (
        '<section id="drop"><p class="lead"><b>Drop an image here</b>, paste one, or</p>'
        '<label class="file">choose a file <input type="file" id="file" accept="image/*" multiple></label>'
        f'<p class="soft small">{escape(what)}</p>{_setting_of(facts)}</section>'
        '<p id="problem" role="alert" hidden></p>'
        '<section id="quick" hidden><img id="preview" alt="the image"><div><p id="answer" role="status"></p>'
        '<table id="classes"></table><p id="note" class="soft small"></p></div></section>'
    )


def _setting_of(facts: dict[str, Any]) -> str:
    if "threshold" in facts["options"]:
        value = f"{facts['threshold']:.2f}"
        return (
            '<label class="least">Confidence threshold <input type="range" id="threshold" min="0" max="1" '
            f'step="0.01" value="{value}"> <output id="least">{value}</output></label>'
        )
    if "labels" in facts["options"]:
        return (
            '<label class="names">Choose among <input type="text" id="labels" spellcheck="false" '
            'placeholder="a cat, a dog, something else"></label>'
        )
    return ""


def _text_form(model: HostedModel) -> str:
    facts = model.facts
    read, written = (escape(code) for code in facts.get("languages", ("", "")))
    asked = f"A sentence to translate, {read} to {written}" if written else "A sentence to label"
    return (
        f'<section id="write"><label for="typed">{asked}</label>'
        f'<textarea id="typed" rows="2" lang="{read}" dir="auto" spellcheck="false" autofocus></textarea>'
        f'<p id="answer" role="status" lang="{written}" dir="auto"></p></section>'
        '<p id="problem" role="alert" hidden></p>'
    )


def _not_ready(model: HostedModel, *, shows_reason: bool) -> str:
    if model.state == "failed":
        why = escape(str(model.error)) if shows_reason else "See the log of the server."
        return f'<p id="problem" role="alert">This model could not be loaded. {why}</p>'
    return (
        '<section><p role="status">This model is being loaded. The page looks again by itself.</p></section>'
    )
