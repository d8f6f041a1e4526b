"""HTTP endpoints: from a request to its model's queue and back, every error as JSON."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from vitrail import __version__
from vitrail.core.errors import DataError, VitrailError
from vitrail.data.images import TooManyPixelsError
from vitrail.interpret.viewer.page import explanation_data
from vitrail.serve.batching import Job
from vitrail.serve.description import DESCRIPTION, OPERATIONS
from vitrail.serve.hosting import CONTENT_TYPE, Explain, HostedModel, Hosting
from vitrail.serve.page import STATIC_FILES, docs_page, front_page
from vitrail.serve.settings import ServeSettings
from vitrail.serve.uploads import Asked, UploadBudget, read_body, take_apart
from vitrail.serve.watching import MODEL_KEY, Watch, answer_http_error
from vitrail.tasks.serving import (
    ClientGoneError,
    Options,
    RefusalError,
    Servable,
    check_options,
    error_tree,
    read_options,
)

EXPLANATION_BYTES = 12_000_000  # compressed: all heads of a ViT-B/16 at 224 pixels take some 4 MB
MAX_EXPLANATIONS = 8  # at once: each holds all attention of an image, tens of megabytes
UPLOADS_AT_ONCE = 8  # uploads of the maximum size that may be held at once


def create_app(hosting: Hosting, settings: ServeSettings) -> FastAPI:
    """Return the web application for models that are loaded or loading."""
    endpoints = Endpoints(hosting, settings)
    app = FastAPI(
        title="Vitrail", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None
    )
    routes: dict[str, Callable[..., Any]] = {
        "/predict": endpoints.predict,
        "/explain": endpoints.explain,
        "/models": endpoints.models,
        "/healthz": endpoints.healthz,
        "/readyz": endpoints.readyz,
        "/metrics": endpoints.metrics_text,
        "/": endpoints.front,
        "/docs": endpoints.docs,
        "/static/{name}": endpoints.static,
    }
    for path, answer in routes.items():
        described = OPERATIONS.get(path, {"include_in_schema": False})
        app.add_api_route(path, answer, response_model=None, **described)
    app.add_exception_handler(HTTPException, answer_http_error)
    token = None if settings.token is None else settings.token.get_secret_value()
    app.add_middleware(Watch, metrics=hosting.metrics, token=token, hosts=settings.allow_hosts)
    return app


class Endpoints:
    """The request handlers."""

    def __init__(self, hosting: Hosting, settings: ServeSettings) -> None:
        self.hosting, self.settings = hosting, settings
        self.budget = UploadBudget(UPLOADS_AT_ONCE * settings.max_upload_bytes)
        self.num_explanations = 0
        # For decoding images and packing explanations beside the models' workers.
        self.pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="vitrail-prepare")

    async def predict(self, request: Request) -> Response:
        async with self._asked(request, is_explanation=False) as (hosted, asked, options):
            results = await self._compute(request, hosted, asked, options, is_explanation=False)
        if not asked.is_list and isinstance(results[0], Exception):
            raise results[0]
        failed = [each for each in results if isinstance(each, VitrailError)]
        unforeseen = [each for each in results if isinstance(each, Exception) and each not in failed]
        if unforeseen or len(failed) == len(results):
            raise (unforeseen or failed)[0]
        trees = [
            {"source": given.name, **error_tree(each)} if isinstance(each, VitrailError) else each
            for given, each in zip(asked.inputs, results, strict=True)
        ]
        return JSONResponse({"model": hosted.name, "results": trees})

    async def explain(self, request: Request) -> Response:
        async with self._asked(request, is_explanation=True) as (hosted, asked, options):
            with self._one_explanation():
                (result,) = await self._compute(request, hosted, asked, options, is_explanation=True)
                if isinstance(result, Exception):
                    raise result
                served, _ = hosted.ready()
                packed = await self._in_pool(explanation_data, result, EXPLANATION_BYTES)
        return JSONResponse({"model": hosted.name, "task": served.task, "explanation": packed})

    async def models(self) -> Response:
        return JSONResponse({"models": [model.describe() for model in self.hosting.models.values()]})

    async def healthz(self) -> Response:
        is_healthy = self.hosting.is_healthy
        return JSONResponse({"status": "ok" if is_healthy else "failing"}, 200 if is_healthy else 503)

    async def readyz(self) -> Response:
        states = {model.name: model.state for model in self.hosting.models.values()}
        tree = {"ready": self.hosting.is_ready, "stopping": self.hosting.is_stopping, "models": states}
        return JSONResponse(tree, 200 if self.hosting.is_ready else 503)

    async def metrics_text(self) -> Response:
        return Response(self.hosting.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def front(self, request: Request) -> Response:
        chosen = request.query_params.get("model")
        return Response(front_page(self.hosting, self.settings, chosen), media_type="text/html")

    async def docs(self) -> Response:
        return Response(docs_page(), media_type="text/html")

    async def static(self, name: str) -> Response:
        if name not in STATIC_FILES:
            raise HTTPException(404)
        content, media_type = STATIC_FILES[name]
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    @asynccontextmanager
    async def _asked(
        self, request: Request, *, is_explanation: bool
    ) -> AsyncIterator[tuple[HostedModel, Asked, Options]]:
        """Read and parse a request; its bytes count as held until the block is left."""
        if request.query_params.get("model") is not None or len(self.hosting.models) == 1:
            self.hosting.find(request.query_params.get("model")).ready()  # before anything is uploaded
        body = await read_body(
            request,
            limit=self.settings.max_upload_bytes,
            timeout_s=self.settings.timeout_s,
            budget=self.budget,
        )
        size = len(body)
        try:
            asked = await take_apart(body, request, self.settings.queue)
            del body
            hosted, options = self._choose(request, asked, is_explanation)
            yield hosted, asked, options
        finally:
            self.budget.give_back(size)

    @contextmanager
    def _one_explanation(self) -> Iterator[None]:
        """Count an explanation that is computed and packed inside the block."""
        if self.num_explanations >= MAX_EXPLANATIONS:
            raise RefusalError(
                429,
                f"{self.num_explanations} explanations are in progress already",
                expected=f"fewer than {MAX_EXPLANATIONS} at once",
                remedy="Retry after the seconds in Retry-After",
                retry_after_s=2,
            )
        self.num_explanations += 1
        try:
            yield
        finally:
            self.num_explanations -= 1

    def _choose(self, request: Request, asked: Asked, is_explanation: bool) -> tuple[HostedModel, Options]:
        name = asked.options.pop("model", None)
        hosted = self.hosting.find(None if name is None else str(name))
        request.scope[MODEL_KEY] = hosted.name
        served, _ = hosted.ready()
        options = read_options(asked.options)
        check_options(served, options, is_explanation=is_explanation)
        if is_explanation and len(asked.inputs) != 1:
            raise RefusalError(
                422,
                f"{len(asked.inputs)} inputs were to be explained",
                expected="one at a time",
                remedy="Send a request for each",
            )
        return hosted, options

    async def _compute(
        self, request: Request, hosted: HostedModel, asked: Asked, options: Options, *, is_explanation: bool
    ) -> list[Any]:
        """Queue inputs for their model, and return a result or an error for each."""
        served, worker = hosted.ready()
        results: list[Any] = []
        waiting: dict[int, Future[Any]] = {}
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                with worker.reserve(len(asked.inputs)) as submit:
                    limit = self.settings.max_pixels
                    read = (self._in_pool(_read, served, given, options, limit) for given in asked.inputs)
                    results += await asyncio.gather(*read)
                    for place, work in enumerate(results):
                        if not isinstance(work, Exception):
                            group = None if is_explanation else served.group(options)
                            waiting[place] = submit(Job(Explain(work) if is_explanation else work, group))
                for place, answer in zip(waiting, await _wait(request, waiting.values()), strict=True):
                    results[place] = answer
        except TimeoutError:
            raise RefusalError(
                504,
                f"the prediction took longer than {self.settings.timeout_s:g} s",
                expected="a prediction within that time",
                remedy="Send fewer inputs, or start the server with a longer --timeout",
            ) from None
        finally:
            for future in waiting.values():
                future.cancel()  # cancelled jobs are not computed
        return results

    async def _in_pool(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *arguments)


def _read(served: Servable, given: Any, options: Options, max_pixels: int) -> Any:
    """Prepare one input, or return its error, so that it does not affect others."""
    try:
        return served.read(given, options, max_pixels)
    except TooManyPixelsError as error:
        return error
    except DataError as error:  # its remedy is meant for data sets
        return RefusalError(422, error.given, expected=error.expected, remedy="Send an intact image file")
    except VitrailError as error:
        return error


async def _wait(request: Request, futures: Any) -> Sequence[Any]:
    """Wait for results as long as the client does."""
    answers = asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
    answers.add_done_callback(asyncio.Future.exception)  # cancelled, it would be logged as not looked at
    hung_up = asyncio.ensure_future(_until_gone(request))
    either: set[asyncio.Future[Any]] = {answers, hung_up}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answers.done():
            raise ClientGoneError
        return answers.result()
    finally:
        hung_up.cancel()
        answers.cancel()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
