"""What answers each path: HTML or JSON. Nothing reads a store on the event loop.

What is in the store now is read in threads of the loop, and answers are made in those of `SharedAnswers`,
once for all viewers: an answer that is kept does not wait for one that is being made. Who may look is decided
by address, by token, or by what a proxy says of the user.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import hashlib
import hmac
import ipaddress
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from tornado.httpserver import HTTPServer
from tornado.httputil import url_concat
from tornado.netutil import bind_sockets
from tornado.routing import Rule, URLSpec
from tornado.web import Application, RequestHandler

from ingest.page import rendering
from ingest.page.asking import BESIDE, ENDPOINTS, Arguments, Asked, Endpoint, Links, document
from ingest.page.library import Library, ListMoment, Moment, Overview, Run
from ingest.page.rendering import clock, environment
from ingest.page.views import SCREENS
from ingest.page.watchers import Watched, Watchers
from workers import events
from workers.errors import REASONS, DamagedStore, DumpIngestError, StoreError, UsageError
from workers.events import Event
from workers.model import MIB
from workers.store import strict_json
from workers.store.objects import StoreRequested

COOKIE = "dump_ingest_page"
#: Names under which a browser on the same host reaches a server on loopback.
_LOOPBACK_NAMES = frozenset(["localhost", "127.0.0.1", "::1"])
_MIN_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Listen:
    """An address to listen at."""

    host: str
    port: int

    @classmethod
    def parse(cls, words: str) -> Self:
        """Return the address of `HOST:PORT`; port 0 is any free one.

        Raises:
            UsageError: it is not one.
        """
        host, colon, port = words.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise UsageError(f"{words!r} is not an address", hint="HOST:PORT, such as 127.0.0.1:8000.")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def shown(self) -> str:
        """The address as it is in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def bind(self) -> tuple[list[socket.socket], str]:
        """Return sockets that listen, and the address as it is in a URL.

        Raises:
            UsageError: the address is in use, or does not belong to this host.
        """
        try:
            sockets = bind_sockets(self.port, self.host)
        except OSError as exc:
            raise UsageError(
                f"cannot listen at {self.shown}: {exc.strerror or exc}",
                hint="Name another address; --listen 127.0.0.1:0 takes any free port.",
            ) from exc
        return sockets, Listen(self.host, sockets[0].getsockname()[1]).shown


@dataclass(frozen=True, slots=True)
class Access:
    """What a request must have."""

    token: str = ""
    """Given as `Authorization: Bearer TOKEN`, or once as `?token=TOKEN`, which sets a cookie."""
    header: str = ""
    """The header in which a proxy names the user whom it has let in."""
    hosts: frozenset[str] = frozenset()
    """The names by which the page may be called; any if empty.

    A site whose name is made to resolve to this address cannot read the page: the browser sends that name.
    """

    def knows_host(self, host: str) -> bool:
        """Return whether the page may be called by this name, given as in the header `Host`."""
        try:
            return not self.hosts or (urlsplit(f"//{host}").hostname or "") in self.hosts
        except ValueError:  # such as `[name`, which no browser sends
            return False

    def admits(self, headers: Mapping[str, str], cookie: str) -> bool:
        """Return whether a request with these headers and this cookie may see the page."""
        if self.header and not headers.get(self.header, "").strip():
            return False
        if not self.token:
            return True
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return True
        return hmac.compare_digest(cookie.encode(), self.cookie.encode())

    def is_token(self, given: str) -> bool:
        """Return whether this is the token, in a time that says nothing about it."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    @property
    def cookie(self) -> str:
        """What the cookie holds: not the token, but a proof of it."""
        return hmac.new(self.token.encode(), COOKIE.encode(), hashlib.sha256).hexdigest()


def access_for(
    listen: Listen, token_file: Path | None, trust_header: str | None, base_url: str | None, *, is_open: bool
) -> Access:
    """Return the access control that requests must pass.

    Args:
        listen: where the server listens.
        token_file: holds the token.
        trust_header: the header that a proxy sets.
        base_url: by what URL people reach the page.
        is_open: whether anybody who reaches the address may look.

    Raises:
        UsageError: other hosts could look without any proof; or the token cannot be read, or is too short.
    """
    token = _token(token_file)
    if not listen.is_loopback and not (token or trust_header or is_open):
        raise UsageError(
            f"{listen.shown} is open to other hosts, which could then read every tensor",
            hint="--token-file FILE asks for a token, --trust-header NAME relies on a proxy, "
            "--allow-anyone asks for nothing.",
        )
    is_for_loopback = listen.is_loopback and not token and not is_open
    names = _LOOPBACK_NAMES | {urlsplit(base_url or "//localhost").hostname or ""}
    return Access(token, trust_header or "", names if is_for_loopback else frozenset())


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"cannot read the token in {path}: {exc}") from exc
    if len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"{path}: the token has fewer than {_MIN_TOKEN} printable ASCII characters",
            hint="openssl rand -hex 24 makes one.",
        )
    return token


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
_ANSWERS = {endpoint.name: endpoint for endpoint in ENDPOINTS}


#: What a server keeps by default, in bytes of ready answers.
DEFAULT_NBYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class PageSettings:
    """How a page is served."""

    listen: Listen
    access: Access = field(default_factory=Access)
    base: str = ""
    cache_nbytes: int = DEFAULT_NBYTES
    watchers: Watchers | None = None
    first_paint_s: float = 0.7
    """A view of a run that was never read appears after this time, and says that the run is being read."""


class _Route(NamedTuple):
    path: str
    answer: Callable[..., Awaitable[None]]
    """Takes the request, and the parts of the path that differ."""
    is_api: bool = False
    is_public: bool = False


class PageRequest(RequestHandler):
    """A request: its headers, access and errors are the same for all paths."""

    site: PageServer
    route: _Route

    def initialize(self, site: PageServer, route: _Route) -> None:
        """Take what all requests share, and what answers this one."""
        self.site, self.route = site, route

    def set_default_headers(self) -> None:
        """Set the headers of every answer, errors included."""
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.clear_header("Server")

    async def prepare(self) -> None:
        """Refuse who may not look, and take a token out of the URL."""
        access = self.site.settings.access
        if not access.knows_host(self.request.host):
            self.refuse(HTTPStatus.MISDIRECTED_REQUEST, "this page is not called by that name", "")
        elif self.route.is_public:
            return
        elif access.token and access.is_token(self.get_query_argument("token", "")):
            self._keep_token()
        elif not access.admits(self.request.headers, self.get_cookie(COOKIE, "") or ""):
            hint = (
                "Open the page with ?token=TOKEN, or send `Authorization: Bearer TOKEN`."
                if access.token
                else f"The proxy must set {access.header}."
            )
            self.refuse(HTTPStatus.UNAUTHORIZED, "this page asks for a token or a proxy", hint)

    def _keep_token(self) -> None:
        base, proof = self.site.settings.base, self.site.settings.access.cookie
        self.set_cookie(COOKIE, proof, httponly=True, samesite="Strict", path=f"{base}/")
        rest = [
            (name, value.decode("utf-8", "replace"))
            for name, values in self.request.query_arguments.items()
            for value in values
            if name != "token"
        ]
        # A proxy may leave the base path on; and browsers take `//name` for another site.
        path = self.request.path.removeprefix(f"{base}/").lstrip("/\\")
        self.redirect(url_concat(f"{base}/{path}", rest))

    def refuse(self, status: HTTPStatus, message: str, hint: str, links: Links | None = None) -> None:
        """Answer with an error, as a page or as JSON."""
        self.set_status(status.value)
        if self.route.is_api:
            self.send_json({"error": {"message": message, "hint": hint}})
            return
        self.send_page(
            "error.html.j2",
            status.phrase,
            links or Links(self.site.settings.base),
            status=f"{status.value} {status.phrase}",
            message=message,
            hint=hint,
        )

    def send_page(self, template: str, title: str, links: Links, **shown: Any) -> None:
        """Answer with a page that is not shared."""
        has_list = self.site.library.is_list
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(rendering.render(template, title=title, links=links, has_list=has_list, **shown))

    def send_json(self, answer: Any) -> None:
        """Answer with JSON."""
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(strict_json.dumps(answer).encode())

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

    async def run(self, name: str) -> Run:
        """Return a run by its name.

        Raises:
            UsageError: it does not exist.
        """
        return await asyncio.to_thread(self.site.library.run, name)

    async def watched(self, run: Run) -> Watched | None:
        """Return the watchers of a run; None if the page knows of none."""
        if self.site.settings.watchers is None:
            return None
        return await asyncio.to_thread(self.site.settings.watchers.of_store, run.url)

    async def runs(self) -> ListMoment:
        """Return what is known of all runs."""
        return await asyncio.to_thread(self.site.library.listed, self.site.settings.first_paint_s)

    async def share(self, run: Run, endpoint: Endpoint, arguments: Arguments) -> None:
        """Answer about a run as it is now; viewers who ask the same get what was made for the first.

        A header names steps whose commits are damaged, because many answers are lists of what is not.
        """
        site, links = self.site, Links(self.site.settings.base, run.name)
        is_screen, beside = bool(endpoint.template), arguments.text(BESIDE)
        watched = await self.watched(run) if endpoint.shows_watchers else None
        moment = await moment_of(run)
        if moment.damages:
            named = [str(damage.key) for damage in moment.damages[:_DAMAGES_NAMED]]
            self.set_header("Damaged-Steps", ", ".join(named))
        token = moment.token
        if beside:
            token += (await moment_of(await self.run(beside))).token
        token += watched.token if watched is not None else ""
        name = endpoint.name if is_screen else f"api/{endpoint.name}"
        asked = Asked(moment, arguments, links, site.library, watched)

        def made() -> bytes:
            try:
                if is_screen:
                    text = page_of(endpoint, asked, run)
                else:
                    text = strict_json.dumps(endpoint.answer(asked))
                # Packed once for all viewers, and not on the event loop.
                return gzip.compress(text.encode(), _GZIP_LEVEL, mtime=0)
            finally:
                moment.let_go()

        question = (run.name, token, name, self.request.query, bool(run.away))
        begin = time.perf_counter()
        packed = await site.answers.answer(question, made, is_slow=endpoint.is_slow(arguments))
        site.metrics.seconds.labels(name).observe(time.perf_counter() - begin)
        kind = "text/html" if is_screen else "application/json"
        self.set_header("Content-Type", f"{kind}; charset=utf-8")
        if _takes_gzip(self.request.headers.get("Accept-Encoding", "")):
            self.set_header("Content-Encoding", "gzip")  # Tornado then leaves it as it is, and sets `Vary`
            self.finish(packed)
        else:
            self.finish(gzip.decompress(packed))

    async def get(self, *words: str) -> None:
        """Answer, and turn errors of this project into answers; Tornado leaves the body out for HEAD."""
        try:
            await self.route.answer(self, *words)
        except DumpIngestError as exc:
            self.site.metrics.failures.labels(exc.reason).inc()
            # Tabs of a run that does not exist would lead nowhere.
            run = words[0] if words and words[0] in self.site.library.opened else ""
            self.refuse(_status_of(exc), exc.message, exc.hint, Links(self.site.settings.base, run))

    head = get

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


def _status_of(error: DumpIngestError) -> HTTPStatus:
    statuses: dict[type[DumpIngestError], HTTPStatus] = {
        UsageError: HTTPStatus.NOT_FOUND,
        DamagedStore: HTTPStatus.UNPROCESSABLE_ENTITY,
        StoreError: HTTPStatus.SERVICE_UNAVAILABLE,
        PageBusy: HTTPStatus.SERVICE_UNAVAILABLE,
    }
    return next((code for kind, code in statuses.items() if isinstance(error, kind)), HTTPStatus.BAD_GATEWAY)


def page_of(screen: Endpoint, asked: Asked, run: Run) -> str:
    """Return a screen as a page."""
    watched = asked.watched
    context = {
        "title": screen.words,
        "links": asked.links,
        "moment": asked.moment,
        "token": asked.moment.token + (watched.token if watched is not None else ""),
        "news": asked.links.api("moment", watchers=None if watched is None else "true"),
        "away": run.away,
        "url": asked.url,
        "tab": screen.name,
        "has_list": asked.library is not None and asked.library.is_list,
        "poll_ms": _poll_ms(run.refresh_s),
        "asked": asked,
    }
    return rendering.render(screen.template, **context | screen.answer(asked))


def _poll_ms(refresh_s: float) -> int:
    """Return how often a page asks for news: more often than the store is asked would say nothing new."""
    return round(1000 * max(refresh_s, _LEAST_POLL_S))


async def _home(request: PageRequest) -> None:
    links, library = Links(request.site.settings.base), request.site.library
    names = await asyncio.to_thread(library.names)
    if library.is_single:
        request.redirect(links.of_run(names[0]).view("incidents"))
        return
    listed = await request.runs()
    request.send_page(
        "runs.html.j2",
        "Runs",
        links,
        runs=listed.runs,
        unlisted=library.unlisted,
        moment=listed,
        token=listed.token,
        news=f"{links.base}/api/v1/moment",
        url=library.url,
        poll_ms=_poll_ms(library.refresh_s),
        comes_back=not listed.is_complete,
    )


async def _run_home(request: PageRequest, run: str) -> None:
    request.redirect(Links(request.site.settings.base, run).view("incidents"))


async def _screen(request: PageRequest, run_name: str, name: str) -> None:
    run = await request.run(run_name)
    if name not in SCREENS:
        raise UsageError(f"no view {name[:80]!r}", hint=f"Views: {', '.join(SCREENS)}.")
    arguments = Arguments.of(request.query(), SCREENS[name].parameters)
    if await asyncio.to_thread(run.is_ready, request.site.settings.first_paint_s):
        await request.share(run, SCREENS[name], arguments)
        return
    request.set_status(HTTPStatus.SERVICE_UNAVAILABLE.value)
    request.set_header("Retry-After", "1")
    links = Links(request.site.settings.base, run_name)
    request.send_page("reading.html.j2", "Reading", links, url=run.url, comes_back=True)


async def _asset(request: PageRequest, name: str) -> None:
    if name not in _ASSETS:
        request.refuse(HTTPStatus.NOT_FOUND, f"no file {name[:80]!r}", "")
        return
    request.set_header("Content-Type", f"{_ASSETS[name]}; charset=utf-8")
    request.finish(rendering.asset(name))


async def _health(request: PageRequest) -> None:
    request.send_json({"ok": True})


async def _metrics(request: PageRequest) -> None:
    request.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
    request.finish(request.site.metrics.text(request.site.answers))


async def _contract(request: PageRequest) -> None:
    request.send_json(document(request.site.settings.base))


async def _runs(request: PageRequest) -> None:
    listed = (await request.runs()).runs
    request.send_json([{"run": name, **asdict(each or Overview())} for name, each in listed.items()])


async def _runs_now(request: PageRequest) -> None:
    listed = await request.runs()
    request.send_json({"token": listed.token, "clock": clock(listed.read_at), "away": ""})


async def _now(request: PageRequest, run_name: str) -> None:
    run = await request.run(run_name)
    moment = await moment_of(run)
    watched = await request.watched(run) if request.get_query_argument("watchers", "") else None
    token = moment.token + (watched.token if watched is not None else "")
    request.send_json({"token": token, "clock": clock(moment.read_at), "away": run.away})


async def _watchers(request: PageRequest, run_name: str) -> None:
    watched = await request.watched(await request.run(run_name))
    if watched is None:
        raise UsageError("the page knows of no watchers", hint="`serve --watchers HOST:PORT,...`")
    request.send_json([asdict(watcher) for watcher in watched.watchers])


async def _answer(request: PageRequest, run_name: str, question: str) -> None:
    if question not in _ANSWERS:
        await _no_path(request)
        return
    arguments = Arguments.of(request.query(), _ANSWERS[question].parameters)
    await request.share(await request.run(run_name), _ANSWERS[question], arguments)


async def _no_path(request: PageRequest) -> None:
    if request.route.is_api:
        request.refuse(HTTPStatus.NOT_FOUND, "no such path", "/openapi.json has all paths.")
    else:
        request.refuse(HTTPStatus.NOT_FOUND, "no such page", "")


_RUN = r"([^/]+)"
ROUTES = (
    _Route(r"/", _home),
    _Route(rf"/runs/{_RUN}/?", _run_home),
    _Route(rf"/runs/{_RUN}/([a-z]+)", _screen),
    _Route(r"/static/([a-z.]+)", _asset, is_public=True),
    _Route(r"/healthz", _health, is_api=True, is_public=True),
    _Route(r"/metrics", _metrics, is_public=True),
    _Route(r"/openapi\.json", _contract, is_api=True),
    _Route(r"/api/v1/moment", _runs_now, is_api=True),
    _Route(r"/api/v1/runs", _runs, is_api=True),
    _Route(rf"/api/v1/runs/{_RUN}/moment", _now, is_api=True),
    _Route(rf"/api/v1/runs/{_RUN}/watchers", _watchers, is_api=True),
    _Route(rf"/api/v1/runs/{_RUN}/([a-z_]+)", _answer, is_api=True),
    _Route(r"/api/.*", _no_path, is_api=True),
)
NO_PAGE = _Route("", _no_path)

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
    return _KEEPING_NBYTES + len(repr(question)) + len(answer)


class PageMetrics:
    """How often and how fast the page answers, and what it keeps."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.seconds = Histogram(
            "dump_ingest_page_answer_seconds",
            "Time to answer, by view or question.",
            ["view"],
            registry=registry,
            buckets=(0.005, 0.02, 0.05, 0.1, 0.3, 1, 3, 10, 30),
        )
        self.failures = Counter(
            "dump_ingest_page_failures", "Answers that failed, by reason.", ["reason"], registry=registry
        )
        for reason in REASONS:
            self.failures.labels(reason)
        self._requests = Counter(
            "dump_ingest_page_store_requests",
            "Requests to stores, by operation; one for several objects counts as one.",
            ["op"],
            registry=registry,
        )
        self._kept, self._limit, self._shared = (
            Gauge(name, words, registry=registry)
            for name, words in (
                ("dump_ingest_page_kept_bytes", "Bytes of kept answers."),
                ("dump_ingest_page_kept_limit_bytes", "The most bytes of kept answers."),
                ("dump_ingest_page_shared_answers", "Answers that were made for another viewer."),
            )
        )

    def observe(self, event: Event) -> None:
        """Count a request to a store, in whichever thread it was made."""
        if isinstance(event, StoreRequested):
            self._requests.labels(event.op).inc()

    def text(self, answers: SharedAnswers) -> bytes:
        """Return all figures."""
        self._kept.set(answers.nbytes)
        self._limit.set(answers.limit)
        self._shared.set(answers.hits)
        return generate_latest(self._registry)


#: Answers that are made at once. More would only share the same processors.
_THREADS = 4
#: New objects, net of those that are gone, after which Python looks for garbage; 700 by default.
_OBJECTS_PER_COLLECTION = 50_000
#: How long imports wait for the first search for incidents, and how often they look, in seconds.
_PREPARED_S, _LOOK_S = 10.0, 0.05


def base_path(words: str) -> str:
    """Return a base path as it stands before other paths: `` or `/dumps`.

    Raises:
        UsageError: it is not a path.
    """
    path = "/" + words.strip("/") if words.strip("/") else ""
    if path and not re.fullmatch(r"(/[\w.~-]+)+", path, re.ASCII):
        raise UsageError(f"{words!r} is not a base path", hint="Such as /dumps.")
    return path


def application(site: PageServer) -> Application:
    """Return the paths and what answers them."""
    base = site.settings.base
    # A proxy may take the base path off, or leave it on.
    prefixes = ["", re.escape(base)] if base else [""]
    rules: list[Rule | list[Any]] = [
        URLSpec(f"{prefix}{route.path}", PageRequest, {"site": site, "route": route})
        for prefix in prefixes
        for route in ROUTES
    ]
    return Application(
        rules,
        default_handler_class=PageRequest,
        default_handler_args={"site": site, "route": NO_PAGE},
        compress_response=True,
        log_function=lambda _request: None,
    )


def _prepare_ahead() -> None:
    """Compile the templates, and import what questions over steps need: no viewer waits for it."""
    for name in environment().list_templates():
        environment().get_template(name)
    for name in ("pandas", "xarray"):
        import_module(name)
    gc.freeze()  # modules are never freed, so collections skip them


@dataclass(eq=False)
class PageServer:
    """A server that is bound to its sockets, and serves while `serve` runs."""

    library: Library
    settings: PageSettings
    metrics: PageMetrics = field(default_factory=PageMetrics)
    _sockets: list[socket.socket] = field(default_factory=list)
    answers: SharedAnswers = field(init=False)
    """While it serves."""

    def bind(self) -> str:
        """Take the address, and return it as a URL.

        Raises:
            UsageError: it cannot be had.
        """
        self._sockets, shown = self.settings.listen.bind()
        return f"http://{shown}{self.settings.base}/"

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set."""
        events.subscribe(self.metrics.observe)
        before = gc.get_threshold()
        # An answer about 5000 tensors makes more objects than by default, and a collection visits all commits
        # of the runs: it took a third of the time of an answer.
        gc.set_threshold(_OBJECTS_PER_COLLECTION, *before[1:])
        try:
            with (
                ThreadPoolExecutor(_THREADS, thread_name_prefix="dump-ingest-page") as pool,
                # One, because each takes a few hundred MiB.
                ThreadPoolExecutor(1, thread_name_prefix="dump-ingest-page-slow") as slow_pool,
            ):
                self.answers = SharedAnswers(pool, slow_pool, self.settings.cache_nbytes)
                server = HTTPServer(
                    application(self),
                    max_header_size=32 * 1024,
                    max_body_size=0,
                    idle_connection_timeout=75,
                )
                server.add_sockets(self._sockets)
                await self._until_prepared(stop)
                pool.submit(_prepare_ahead)
                await stop.wait()
                server.stop()
                await server.close_all_connections()
        finally:
            gc.set_threshold(*before)
            gc.unfreeze()
            events.unsubscribe(self.metrics.observe)

    async def _until_prepared(self, stop: asyncio.Event) -> None:
        """Wait until the first viewer has the incidents: imports would take processor time from that."""
        until = asyncio.get_running_loop().time() + _PREPARED_S
        while asyncio.get_running_loop().time() < until:
            if all(run.store.is_settled for run in list(self.library.opened.values())):
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_S)
                return
