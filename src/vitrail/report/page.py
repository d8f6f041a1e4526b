"""Frame of every page: one self-contained HTML file, light and dark, phone to desktop."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from vitrail.core.durable import atomic_write

MAX_PNG_COLOURS = 16_384  # with more, a picture is a photograph: a PNG takes long to make and is larger
STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def write_page(path: Path, *, title: str, body: str, style: str = "", script: str = "") -> None:
    """Write a page of ``page_html`` atomically.

    Raises:
        CheckpointError: the disk is full or not writable; a former page is as it was.
    """
    atomic_write(path, page_html(title=title, body=body, style=style, script=script))


def page_html(*, title: str, body: str, style: str = "", script: str = "") -> str:
    """Return a self-contained HTML page.

    Args:
        title: plain text.
        body: HTML in which all text of users is escaped.
        style: CSS after the shared rules.
        script: JavaScript that runs after the body.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n"
        f"<body><main>\n{body}\n</main>"
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )


def section(title: str, content: str, note: str = "") -> str:
    """Return a section; title and note are plain text, the content is HTML."""
    lead = f'<p class="soft small">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{lead}{content}</section>"


def conclusions(sentences: Sequence[str]) -> str:
    """Return a page's first box: plain sentences that say what it shows; empty without any."""
    lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return section("Conclusions", f"<ul class=says>{lines}</ul>") if lines else ""


def tiles(entries: Iterable[tuple[str, str, str]]) -> str:
    """Show headline numbers: value, name and remark of each, all plain text."""
    shown = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(remark)}</span></div>"
        for value, name, remark in entries
    )
    return f'<div class="tiles">{shown}</div>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[int] = frozenset()) -> str:
    """Return a table of plain text; the columns in ``numbers`` are right-aligned."""

    def line(cells: Sequence[str], tag: str) -> str:
        shown = (
            f"<{tag}{' class=number' if i in numbers else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(shown)}</tr>"

    head = f"<thead>{line(header, 'th')}</thead>" if any(header) else ""
    lines = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table>{head}<tbody>{lines}</tbody></table></div>'


def picture_uri(picture: Image.Image, *, longest: int = 160) -> str:
    """Encode a picture, scaled down to ``longest`` pixels, as JPEG, or as PNG where that is smaller."""
    picture = picture.convert("RGB")
    picture.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    kinds: dict[str, dict[str, Any]] = {"jpeg": {"quality": 82}}
    if picture.getcolors(MAX_PNG_COLOURS) is not None:
        kinds["png"] = {"optimize": True}
    encoded = []
    for kind, settings in kinds.items():
        buffer = io.BytesIO()
        picture.save(buffer, format=kind, **settings)
        encoded.append((kind, buffer.getvalue()))
    kind, data = min(encoded, key=lambda entry: len(entry[1]))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
