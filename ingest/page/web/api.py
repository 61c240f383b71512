"""What answers requests of the HTTP API: JSON, never HTML."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

from ingest.page.answers import BESIDE, Endpoint
from ingest.page.arguments import Arguments
from ingest.page.links import Links
from ingest.page.overview import Overview
from ingest.page.overviews import ListMoment
from ingest.page.screen import Asked
from ingest.page.web.handlers import Handler, Site, moment_of
from ingest.page.words import clock
from workers.errors import UsageError
from workers.store import strict_json


class ApiAnswer(Handler):
    """`/api/v1/runs/RUN/QUESTION`: JSON."""

    is_api = True

    def initialize(self, site: Site, question: Endpoint) -> None:  # type: ignore[override]
        """Take what all requests share, and the question of this path."""
        super().initialize(site)
        self.question = question

    async def get(self, run_name: str) -> None:
        """Answer."""

        async def show() -> None:
            asked = Arguments.of(self.query(), self.question.parameters)
            run = await asyncio.to_thread(self.site.library.run, run_name)
            name = f"api/{self.question.name}"
            library, links = self.site.library, Links(self.site.base, run.name)
            packed = await self.answer(
                run,
                name,
                lambda moment: strict_json.dumps(
                    self.question.answer(Asked(moment, asked, links, library))
                ).encode(),
                beside=asked.text(BESIDE),
                is_slow=self.question.is_slow(asked),
            )
            self.send_packed(packed, "application/json")

        await self.guarded(Links(self.site.base), show)


class Now(Handler):
    """`/api/v1/runs/RUN/moment`: what is committed now, as one word; and whether the store answers."""

    is_api = True

    async def get(self, run_name: str) -> None:
        """Answer."""

        async def show() -> None:
            run = await asyncio.to_thread(self.site.library.run, run_name)
            moment = await moment_of(run)
            watched = await self.watched(run) if self.get_query_argument("watchers", "") else None
            token = moment.token + (watched.token if watched is not None else "")
            now = {"token": token, "clock": clock(moment.read_at), "away": run.away}
            self.send_json(json.dumps(now).encode())

        await self.guarded(Links(self.site.base), show)


class WatchersNow(Handler):
    """`/api/v1/runs/RUN/watchers`: what the watchers of a run say of themselves."""

    is_api = True

    async def get(self, run_name: str) -> None:
        """Answer."""

        async def show() -> None:
            run = await asyncio.to_thread(self.site.library.run, run_name)
            watched = await self.watched(run)
            if watched is None:
                raise UsageError("the page knows of no watchers", hint="`serve --watchers HOST:PORT,...`")
            rows = [watcher.to_dict() for watcher in watched.watchers]
            self.send_json(strict_json.dumps(rows).encode())

        await self.guarded(Links(self.site.base), show)


class UnknownPath(Handler):
    """Any other path below `/api/`."""

    is_api = True

    async def get(self) -> None:
        """Answer."""
        self.refuse(HTTPStatus.NOT_FOUND, "no such path", "/openapi.json has all paths.")


class Runs(Handler):
    """`/api/v1/runs`: all runs, and what the list of them says of each."""

    is_api = True

    async def get(self) -> None:
        """Answer."""

        async def show() -> None:
            listed = await self.listed()
            rows = [
                {"run": name, **(overview or Overview()).to_dict()} for name, overview in listed.runs.items()
            ]
            self.send_json(strict_json.dumps(rows).encode())

        await self.guarded(Links(self.site.base), show)

    async def listed(self) -> ListMoment:
        """Return what is known of all runs."""
        library = self.site.library
        names = await asyncio.to_thread(library.names)
        return await asyncio.to_thread(library.overviews.moment, names, self.site.first_paint_s)


class RunsNow(Runs):
    """`/api/v1/moment`: what the list of runs says now, as one word."""

    async def get(self) -> None:
        """Answer."""

        async def show() -> None:
            listed = await self.listed()
            now = {"token": listed.token, "clock": clock(listed.read_at), "away": ""}
            self.send_json(json.dumps(now).encode())

        await self.guarded(Links(self.site.base), show)


class Contract(Handler):
    """`/openapi.json`: what the API answers."""

    is_api = True

    def initialize(self, site: Site, document: bytes) -> None:  # type: ignore[override]
        """Take the document."""
        super().initialize(site)
        self.document = document

    async def get(self) -> None:
        """Answer."""
        self.send_json(self.document)
