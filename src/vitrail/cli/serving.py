"""The command serve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitrail.cli import show
from vitrail.cli.app import Flag, app, split_names

if TYPE_CHECKING:
    from vitrail.serve.running import ServeEvent


@app.command(help_epilogue="Example: vitrail serve runs/flowers cells=runs/a --port 9000")
def serve(
    runs: Annotated[list[str], Parameter(name="RUN")],
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_host: str = "",
    token_file: Path | None = None,
    engine: str | None = None,
    precision: str | None = None,
    trust: Flag = False,
    max_batch: int = 8,
    max_wait_ms: float = 2.0,
    queue: int = 64,
    timeout: float = 30.0,
    max_upload_mb: float = 20.0,
    max_pixels: int = 50_000_000,
) -> int:
    """Serve models on this machine: a page to try them, and /predict and /explain for programs.

    Args:
        runs: Run directories, checkpoint folders or exported models; NAME=RUN gives one a name.
        host: Address to listen on; 0.0.0.0 lets other machines in, and should have a token.
        port: Port to listen on; 0 takes a free one.
        allow_host: Comma-separated hosts of URLs to accept, such as models.example.org of a proxy.
        token_file: File with the token that requests must carry. Default: the variable VITRAIL_TOKEN.
        engine: Image models only: torch, compiled, onnxruntime, openvino, or auto, the fastest.
        precision: Number type of the matrix products: float32, bfloat16 or int8.
        trust: Also serve models exported for torch (.pt2); reading one can run code of whoever wrote it.
        max_batch: Maximum batch size.
        max_wait_ms: How long an idle model waits to fill a batch.
        queue: Inputs that may wait for each model; more are refused with 429.
        timeout: Time limit in seconds of an upload, and of a prediction.
        max_upload_mb: Size limit of a request.
        max_pixels: Size limit of an image, in pixels.
    """
    options = locals()  # most have the names of settings
    from vitrail.serve import ServeSettings
    from vitrail.serve import serve as run_server
    from vitrail.serve.settings import find_token

    same = {name: value for name, value in options.items() if name in ServeSettings.model_fields}
    others = {"token": find_token(token_file), "timeout_s": timeout, "allow_hosts": split_names(allow_host)}
    settings = ServeSettings.from_tree({**same, **others})
    run_server(runs, settings, on_event=show_serving)
    return 0


def show_serving(event: ServeEvent) -> None:
    """Print a line for an event, at once."""
    from vitrail.serve.running import Listening, ModelFailed, ModelLoaded

    if isinstance(event, Listening):
        if event.is_open:
            show.fault("warning: other machines can reach this server, and it asks for no token")
        lines = [f"serving on {event.url} (Ctrl+C stops)"]
    elif isinstance(event, ModelLoaded):
        lines = [f"ready    {event.name}: {event.kind}, loaded in {event.seconds:.1f} s"]
    elif isinstance(event, ModelFailed):
        show.fault(f"failed: {event.name}: {event.error}")
        lines = []
    else:
        lines = ["stopping, accepted requests are answered first"]
    show.lines(lines)
    sys.stdout.flush()
