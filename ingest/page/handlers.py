"""What answers each kind of request: HTML or JSON. Nothing reads a store on the event loop.

What is in the store now is read in threads of the loop, and answers are made in those of `SharedAnswers`,
once for all viewers: an answer that is kept does not wait for one that is being made.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from tornado.httputil import url_concat
from tornado.web import RequestHandler

from ingest.page import rendering
from ingest.page.access import COOKIE, Access
from ingest.page.answers import BESIDE, Endpoint
from ingest.page.asking import Arguments, Asked, Links, Screen
from ingest.page.library import Library, ListMoment, Overview, Run
from ingest.page.moment import Moment
from ingest.page.rendering import clock
from ingest.page.views import SCREENS, TABS
from ingest.page.watchers import Watched, Watchers
from workers.errors import REASONS, DamagedStore, DumpIngestError, StoreError, UsageError
from workers.events import Event
from workers.model import MIB
from workers.store import strict_json
from workers.store.objects import StoreRequested

#: Nothing but files of the page itself is loaded, and no script that is written into a page runs.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}
#: How often a page asks for news, at most.
_LEAST_POLL_S = 0.5
#: Larger than level 9 by a tenth, in a third of its time.
_GZIP_LEVEL = 4
#: Steps with damaged commits that an answer names at most.
_DAMAGES_NAMED = 20
_ASSETS = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Site:
    """What all requests share."""

    library: Library
    answers: SharedAnswers
    access: Access
    metrics: PageMetrics
    base: str = ""
    watchers: Watchers | None = None
    first_paint_s: float = 0.7


class Handler(RequestHandler):
    """Headers, access and errors, the same for all requests."""

    site: Site
    show: Callable[..., Awaitable[None]]
    """Answers; takes the parts of the path that differ."""
    is_public = False
    is_api = False

    def initialize(self, site: Site) -> None:
        """Take what all requests share."""
        self.site = site

    def set_default_headers(self) -> None:
        """Set the headers of every answer, errors included."""
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.clear_header("Server")

    async def prepare(self) -> None:
        """Refuse who may not look, and take a token out of the URL."""
        access = self.site.access
        if not access.knows_host(self.request.host):
            self.refuse(HTTPStatus.MISDIRECTED_REQUEST, "this page is not called by that name", "")
            return
        if self.is_public:
            return
        given = self.get_query_argument("token", "")
        if access.token and given and access.is_token(given):
            self._keep_token()
            return
        if not access.admits(self.request.headers, self.get_cookie(COOKIE, "") or ""):
            hint = (
                "Open the page with ?token=TOKEN, or send `Authorization: Bearer TOKEN`."
                if access.token
                else f"The proxy must set {access.header}."
            )
            self.refuse(HTTPStatus.UNAUTHORIZED, "this page asks for a token or a proxy", hint)

    def _keep_token(self) -> None:
        """Set the cookie, and redirect to the URL without the token."""
        self.set_cookie(
            COOKIE, self.site.access.cookie, httponly=True, samesite="Strict", path=f"{self.site.base}/"
        )
        rest = [
            (name, value.decode("utf-8", "replace"))
            for name, values in self.request.query_arguments.items()
            for value in values
            if name != "token"
        ]
        # A proxy may leave the base path on; and browsers take `//name` for another site.
        path = self.request.path.removeprefix(f"{self.site.base}/").lstrip("/\\")
        self.redirect(url_concat(f"{self.site.base}/{path}", rest))

    def refuse(self, status: HTTPStatus, message: str, hint: str, links: Links | None = None) -> None:
        """Answer with an error, as a page or as JSON."""
        self.set_status(status.value)
        if self.is_api:
            self.send_json(strict_json.dumps({"error": {"message": message, "hint": hint}}).encode())
            return
        page = rendering.render(
            "error.html.j2",
            title=status.phrase,
            status=f"{status.value} {status.phrase}",
            message=message,
            hint=hint,
            **frame(links or Links(self.site.base), has_list=self.site.library.is_list),
        )
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(page)

    def send_json(self, body: bytes) -> None:
        """Answer with JSON."""
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(body)

    def send_packed(self, packed: bytes, kind: str) -> None:
        """Answer with what `answer` returned: as it is, unless the viewer does not take gzip."""
        self.set_header("Content-Type", f"{kind}; charset=utf-8")
        if _takes_gzip(self.request.headers.get("Accept-Encoding", "")):
            self.set_header("Content-Encoding", "gzip")  # Tornado then leaves it as it is, and sets `Vary`
            self.finish(packed)
        else:
            self.finish(gzip.decompress(packed))

    async def watched(self, run: Run) -> Watched | None:
        """Return the watchers of a run; None if the page knows of none."""
        watchers = self.site.watchers
        if watchers is None:
            return None
        return await asyncio.to_thread(watchers.of_store, run.url)

    async def answer(
        self,
        run: Run,
        name: str,
        make: Callable[[Moment], bytes],
        *,
        beside: str = "",
        watched: Watched | None = None,
        is_slow: bool = False,
    ) -> bytes:
        """Return what `make` returns of a run as it is now, packed by gzip; viewers share it.

        A header names steps whose commits are damaged, because many answers are lists of what is not.

        Args:
            run: the run.
            name: the view or question.
            make: makes the answer.
            beside: the name of another run that the answer is about, too.
            watched: the watchers that it is about, too.
            is_slow: whether it takes seconds to make.
        """
        site = self.site
        moment = await moment_of(run)
        token = moment.token
        if moment.damages:
            named = [str(damage.key) for damage in moment.damages[:_DAMAGES_NAMED]]
            self.set_header("Damaged-Steps", ", ".join(named))
        if beside:
            other = await asyncio.to_thread(site.library.run, beside)
            token += (await moment_of(other)).token
        token += watched.token if watched is not None else ""
        question = (run.name, token, name, self.request.query, bool(run.away))

        def made() -> bytes:
            try:
                # Packed once for all viewers, and not on the event loop.
                return gzip.compress(make(moment), _GZIP_LEVEL, mtime=0)
            finally:
                moment.let_go()

        with site.metrics.answering(name):
            return await site.answers.answer(question, made, is_slow=is_slow)

    def query(self) -> dict[str, str]:
        """Return the parameters of the URL as they are: a name may hold spaces and control characters.

        Raises:
            UsageError: one is given twice, or is not UTF-8.
        """
        query = {}
        for name, values in self.request.query_arguments.items():
            if len(values) > 1:
                raise UsageError(f"the parameter {name[:80]!r} is given {len(values)} times")
            try:
                query[name] = values[0].decode()
            except UnicodeDecodeError as exc:
                raise UsageError(f"the parameter {name[:80]!r} is not UTF-8") from exc
        return query

    async def get(self, *words: str) -> None:
        """Answer, and turn errors of this project into answers."""
        try:
            await self.show(*words)
        except DumpIngestError as exc:
            self.site.metrics.failed(exc.reason)
            # Tabs of a run that does not exist would lead nowhere.
            run = words[0] if words and self.site.library.has_opened(words[0]) else ""
            self.refuse(status_of(exc), exc.message, exc.hint, Links(self.site.base, run))

    async def head(self, *words: str) -> None:
        """Answer as `get` does; Tornado leaves the body out."""
        await self.get(*words)

    def write_error(self, status_code: int, **_details: Any) -> None:
        """Answer with what went wrong, without a traceback."""
        status = HTTPStatus(status_code)
        self.refuse(status, status.phrase.lower() if status_code != 500 else "an error in this program", "")


async def moment_of(run: Run) -> Moment:
    """Return a run as it is now. Stores that hang take no threads from requests for others.

    Raises:
        UsageError: the URL does not hold a store.
        StoreError: the store cannot be read and has not been read before.
    """
    first = run.first_moment()
    if first is not None:
        return await asyncio.shield(asyncio.wrap_future(first))
    return await asyncio.to_thread(run.moment)


def _takes_gzip(accepted: str) -> bool:
    """Return whether a viewer who sends this `Accept-Encoding` takes gzip (RFC 9110, section 12.5.3)."""
    codings = [coding.replace(" ", "").lower().partition(";q=") for coding in accepted.split(",")]
    return any(
        coding == "gzip" and (not sign or bool(weight.strip("0."))) for coding, sign, weight in codings
    )


def status_of(error: DumpIngestError) -> HTTPStatus:
    """Return the status of an answer that an error ended."""
    if isinstance(error, UsageError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, DamagedStore):
        return HTTPStatus.UNPROCESSABLE_ENTITY
    may_be_repeated = isinstance(error, StoreError | PageBusy)
    return HTTPStatus.SERVICE_UNAVAILABLE if may_be_repeated else HTTPStatus.BAD_GATEWAY


def frame(links: Links, **given: Any) -> dict[str, Any]:
    """Return the values that the frame of every page shows."""
    return {
        "links": links,
        "tabs": TABS,
        "tab": "",
        "moment": None,
        "away": "",
        "url": "",
        "report": None,
        "comes_back": False,
        "has_list": False,
    } | given


class Home(Handler):
    """`/`: the list of runs, or the only run."""

    async def show(self) -> None:
        """Answer."""
        links = Links(self.site.base)
        library = self.site.library
        names = await asyncio.to_thread(library.names)
        if library.is_single:
            self.redirect(links.of_run(names[0]).view("incidents"))
            return
        listed = await asyncio.to_thread(library.overviews.moment, names, self.site.first_paint_s)
        context = frame(
            links,
            moment=listed,
            token=listed.token,
            news=f"{links.base}/api/v1/moment",
            url=library.url,
            poll_ms=_poll_ms(library.refresh_s),
            comes_back=not listed.is_complete,
        )
        self.finish(
            rendering.render(
                "runs.html.j2", title="Runs", runs=listed.runs, unlisted=library.unlisted, **context
            )
        )


class RunHome(Handler):
    """`/runs/RUN`: its incidents."""

    async def show(self, run_name: str) -> None:
        """Answer."""
        self.redirect(Links(self.site.base, run_name).view("incidents"))


class View(Handler):
    """`/runs/RUN/VIEW`: a screen."""

    async def show(self, run_name: str, view: str) -> None:
        """Answer."""
        links = Links(self.site.base, run_name)
        run = await asyncio.to_thread(self.site.library.run, run_name)
        screen = SCREENS.get(view)
        if screen is None:
            raise UsageError(f"no view {view[:80]!r}", hint=f"Views: {', '.join(SCREENS)}.")
        asked = Arguments.of(self.query(), screen.parameters)
        if not await asyncio.to_thread(run.is_ready, self.site.first_paint_s):
            self.say_that_it_is_read(run, links)
            return
        watched = await self.watched(run) if screen.shows_watchers else None
        packed = await self.answer(
            run,
            view,
            lambda moment: page_of(screen, Asked(moment, asked, links, self.site.library, watched), run),
            beside=asked.text(BESIDE),
            watched=watched,
            is_slow=screen.is_slow(asked),
        )
        self.send_packed(packed, "text/html")

    def say_that_it_is_read(self, run: Run, links: Links) -> None:
        """Answer with a page that comes back by itself."""
        self.set_status(HTTPStatus.SERVICE_UNAVAILABLE.value)
        self.set_header("Retry-After", "1")
        context = frame(links, url=run.url, comes_back=True, has_list=self.site.library.is_list)
        self.finish(rendering.render("reading.html.j2", title="Reading", **context))


def page_of(screen: Screen, asked: Asked, run: Run) -> bytes:
    """Return a screen as a page."""
    watched = asked.watched
    context = frame(
        links=asked.links,
        moment=asked.moment,
        token=asked.moment.token + (watched.token if watched is not None else ""),
        news=asked.links.api("moment", watchers=None if watched is None else "true"),
        away=run.away,
        url=asked.url,
        tab=screen.name,
        has_list=asked.library is not None and asked.library.is_list,
        poll_ms=_poll_ms(run.refresh_s),
    )
    shown = {"title": screen.title} | context | screen.show(asked)
    return rendering.render(screen.template, **shown).encode()


def _poll_ms(refresh_s: float) -> int:
    """Return how often a page asks for news: more often than the store is asked would say nothing new."""
    return round(1000 * max(refresh_s, _LEAST_POLL_S))


class Asset(Handler):
    """`/static/NAME`: a file of the page itself."""

    is_public = True

    async def show(self, name: str) -> None:
        """Answer."""
        kind = _ASSETS.get(name)
        if kind is None:
            self.refuse(HTTPStatus.NOT_FOUND, f"no file {name[:80]!r}", "")
            return
        self.set_header("Content-Type", f"{kind}; charset=utf-8")
        self.finish(rendering.asset(name))


class Health(Handler):
    """`/healthz`: whether the server answers; it says nothing about the store."""

    is_public = True
    is_api = True

    async def show(self) -> None:
        """Answer."""
        self.send_json(b'{"ok": true}')


class OwnMetrics(Handler):
    """`/metrics`: figures of the server, for Prometheus."""

    is_public = True

    async def show(self) -> None:
        """Answer."""
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(self.site.metrics.text(self.site.answers))


class Unknown(Handler):
    """Any other path."""

    async def show(self) -> None:
        """Answer."""
        self.refuse(HTTPStatus.NOT_FOUND, "no such page", "")


class ApiAnswer(Handler):
    """`/api/v1/runs/RUN/QUESTION`: JSON."""

    is_api = True

    def initialize(self, site: Site, question: Endpoint) -> None:  # type: ignore[override]
        """Take what all requests share, and the question of this path."""
        super().initialize(site)
        self.question = question

    async def show(self, run_name: str) -> None:
        """Answer."""
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


class Now(Handler):
    """`/api/v1/runs/RUN/moment`: what is committed now, as one word; and whether the store answers."""

    is_api = True

    async def show(self, run_name: str) -> None:
        """Answer."""
        run = await asyncio.to_thread(self.site.library.run, run_name)
        moment = await moment_of(run)
        watched = await self.watched(run) if self.get_query_argument("watchers", "") else None
        token = moment.token + (watched.token if watched is not None else "")
        now = {"token": token, "clock": clock(moment.read_at), "away": run.away}
        self.send_json(json.dumps(now).encode())


class WatchersNow(Handler):
    """`/api/v1/runs/RUN/watchers`: what the watchers of a run say of themselves."""

    is_api = True

    async def show(self, run_name: str) -> None:
        """Answer."""
        run = await asyncio.to_thread(self.site.library.run, run_name)
        watched = await self.watched(run)
        if watched is None:
            raise UsageError("the page knows of no watchers", hint="`serve --watchers HOST:PORT,...`")
        rows = [watcher.to_dict() for watcher in watched.watchers]
        self.send_json(strict_json.dumps(rows).encode())


class UnknownPath(Handler):
    """Any other path below `/api/`."""

    is_api = True

    async def show(self) -> None:
        """Answer."""
        self.refuse(HTTPStatus.NOT_FOUND, "no such path", "/openapi.json has all paths.")


class Runs(Handler):
    """`/api/v1/runs`: all runs, and what the list of them says of each."""

    is_api = True

    async def show(self) -> None:
        """Answer."""
        listed = await self.listed()
        rows = [{"run": name, **(overview or Overview()).to_dict()} for name, overview in listed.runs.items()]
        self.send_json(strict_json.dumps(rows).encode())

    async def listed(self) -> ListMoment:
        """Return what is known of all runs."""
        library = self.site.library
        names = await asyncio.to_thread(library.names)
        return await asyncio.to_thread(library.overviews.moment, names, self.site.first_paint_s)


class RunsNow(Runs):
    """`/api/v1/moment`: what the list of runs says now, as one word."""

    async def show(self) -> None:
        """Answer."""
        listed = await self.listed()
        now = {"token": listed.token, "clock": clock(listed.read_at), "away": ""}
        self.send_json(json.dumps(now).encode())


class Contract(Handler):
    """`/openapi.json`: what the API answers."""

    is_api = True

    def initialize(self, site: Site, document: bytes) -> None:  # type: ignore[override]
        """Take the document."""
        super().initialize(site)
        self.document = document

    async def show(self) -> None:
        """Answer."""
        self.send_json(self.document)


#: What a server keeps by default, in bytes of ready answers.
DEFAULT_NBYTES = 64 * MIB
#: What it takes to keep an answer, besides its bytes and those of its question, about.
_KEEPING_NBYTES = 512
#: The most questions whose answers are being made, or wait for a thread. Each holds a moment of its run.
MOST_UNDER_WAY = 100


class PageBusy(DumpIngestError):
    """So many answers are being made that no other is begun."""

    hint = "Try again in a minute."


@dataclass(eq=False)
class SharedAnswers:
    """Ready answers by question, which take at most `limit` bytes; the least recently asked one goes first.

    It belongs to one event loop. Answers are made in the threads of `pool`, and slow ones in those of
    `slow_pool`: the others do not wait for them. At most `MOST_UNDER_WAY` are made, or wait to be made.
    """

    pool: ThreadPoolExecutor
    slow_pool: ThreadPoolExecutor
    limit: int = DEFAULT_NBYTES
    hits: int = 0
    made: int = 0
    nbytes: int = 0
    """Of the kept answers and their questions."""
    _kept: OrderedDict[Hashable, bytes] = field(default_factory=OrderedDict)
    _under_way: dict[Hashable, asyncio.Future[bytes]] = field(default_factory=dict)

    async def answer(self, question: Hashable, make: Callable[[], bytes], *, is_slow: bool = False) -> bytes:
        """Return the answer to a question: a kept one, the one being made, or a new one.

        Raises:
            PageBusy: too many others are being made.
        """
        if question in self._kept:
            self.hits += 1
            self._kept.move_to_end(question)
            return self._kept[question]
        if question in self._under_way:
            self.hits += 1
            return await asyncio.shield(self._under_way[question])
        if len(self._under_way) >= MOST_UNDER_WAY:
            raise PageBusy(f"the page is busy: {MOST_UNDER_WAY} other answers are being made")
        self.made += 1
        future = asyncio.get_running_loop().run_in_executor(self.slow_pool if is_slow else self.pool, make)
        self._under_way[question] = future
        # A viewer who leaves does not take the answer from the others.
        future.add_done_callback(lambda done: self._settle(question, done))
        return await asyncio.shield(future)

    def _settle(self, question: Hashable, done: asyncio.Future[bytes]) -> None:
        del self._under_way[question]
        if done.cancelled() or done.exception() is not None:
            return
        answer = done.result()
        if _nbytes_of(question, answer) > self.limit:
            return
        self._kept[question] = answer
        self.nbytes += _nbytes_of(question, answer)
        while self.nbytes > self.limit:
            self.nbytes -= _nbytes_of(*self._kept.popitem(last=False))


def _nbytes_of(question: Hashable, answer: bytes) -> int:
    """Return about how many bytes an answer takes: viewers may ask long questions with short answers."""
    return _KEEPING_NBYTES + len(repr(question)) + len(answer)


class PageMetrics:
    """How often and how fast the page answers, and what it keeps."""

    def __init__(self) -> None:
        """Begin with zeros, for every reason of an error."""
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "dump_ingest_page_answer_seconds",
            "Time to answer, by view or question.",
            ["view"],
            registry=self._registry,
            buckets=(0.005, 0.02, 0.05, 0.1, 0.3, 1, 3, 10, 30),
        )
        self._failures = Counter(
            "dump_ingest_page_failures",
            "Answers that failed, by reason.",
            ["reason"],
            registry=self._registry,
        )
        for reason in REASONS:
            self._failures.labels(reason)
        self._requests = Counter(
            "dump_ingest_page_store_requests",
            "Requests to stores, by operation; one for several objects counts as one.",
            ["op"],
            registry=self._registry,
        )
        self._kept = Gauge("dump_ingest_page_kept_bytes", "Bytes of kept answers.", registry=self._registry)
        self._limit = Gauge(
            "dump_ingest_page_kept_limit_bytes", "The most bytes of kept answers.", registry=self._registry
        )
        self._shared = Gauge(
            "dump_ingest_page_shared_answers",
            "Answers that were made for another viewer.",
            registry=self._registry,
        )

    @contextmanager
    def answering(self, view: str) -> Iterator[None]:
        """Measure an answer."""
        begin = time.perf_counter()
        yield
        self._seconds.labels(view).observe(time.perf_counter() - begin)

    def observe(self, event: Event) -> None:
        """Count a request to a store, in whichever thread it was made."""
        if isinstance(event, StoreRequested):
            self._requests.labels(event.op).inc()

    def failed(self, reason: str) -> None:
        """Count an answer that failed."""
        self._failures.labels(reason).inc()

    def text(self, answers: SharedAnswers) -> bytes:
        """Return all figures."""
        self._kept.set(answers.nbytes)
        self._limit.set(answers.limit)
        self._shared.set(answers.hits)
        return generate_latest(self._registry)
