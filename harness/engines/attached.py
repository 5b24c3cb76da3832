"""A server that is already running: what it serves, and what it tells of itself.

Nothing of it is changed. Its log, command line and memory are out of reach, so they are unknown
in the record. What it says is stored, so all of it is checked here: a version that is no short text
is unknown, a model's name that can't be stored is refused, and the key that it was sent is hidden.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from harness.errors import NotFound
from harness.load.target import hide
from harness.record import ServerFacts
from harness.scenario.value_checks import faults
from harness.telemetry import timed
from harness.telemetry.engine import read_granted, word
from harness.units import Seconds

#: For the whole of an answer, however slowly it comes.
TIMEOUT_S: Seconds = 10.0
_MAX_BYTES = 1 << 20
#: As long as a path on the server's disk may be, which is what some servers name a model by.
_MAX_NAME_CHARS = 4096
_LEAST_KEY_CHARS = 8


def root_url(url: str) -> str:
    """``http://host:port/v1`` → ``http://host:port``, where ``/metrics`` is."""
    return url.rstrip("/").removesuffix("/v1")


def facts(url: str, api_key: str | None) -> ServerFacts:
    """Ask a server for its model, version and KV pool.

    Raises:
        NotFound: nothing answers there, or it lists no model.
    """
    served = _served_model(url.rstrip("/"), api_key)
    root = root_url(url)
    version, _ = _get(f"{root}/version", api_key)
    stated = version.get("version") if isinstance(version, dict) else None
    granted = read_granted(root, TIMEOUT_S)
    return ServerFacts(
        url=url.rstrip("/"),
        launched=False,
        served_model=served,
        engine="vllm" if isinstance(version, dict) else "unknown",
        engine_version=_without(api_key, stated),
        granted=replace(granted, cache_dtype=_without(api_key, granted.cache_dtype)),
    )


def _without(api_key: str | None, stated: object) -> str | None:
    said = word(stated)
    return None if said is None or _holds(said, api_key) else said


def _holds(text: str, api_key: str | None) -> bool:
    """Whether the key stands there; a word such as EMPTY is no key, and stands in many a name."""
    return api_key is not None and len(api_key) >= _LEAST_KEY_CHARS and api_key in text


def _served_model(url: str, api_key: str | None) -> str:
    listing, fault = _get(f"{url}/models", api_key)
    if fault is not None:
        raise NotFound(
            f"no OpenAI-compatible server answers there ({hide(fault, api_key)[:200]})",
            where=url,
            next_move="start it first; the URL ends in /v1; a key is read from OPENAI_API_KEY",
        )
    entries = listing.get("data") if isinstance(listing, dict) else None
    refused = []
    for entry in entries if isinstance(entries, list) else []:
        name = entry.get("id") if isinstance(entry, dict) else None
        if (why := _name_fault(name, api_key)) is None:
            return str(name)
        refused.append(why)
    raise NotFound(
        f"the server lists no model that can be used: {refused[0]}"
        if refused
        else "the server lists no model",
        where=f"{url}/models",
        next_move="serve the model under a plain name (vLLM: --served-model-name)"
        if refused
        else "load a model into the server first",
    )


def _name_fault(name: object, api_key: str | None) -> str | None:
    """Why a model of this name can't be asked for and stored; None if it can."""
    if not isinstance(name, str):
        return f"{ascii(name)[:40]} is no name"
    if _holds(name, api_key):
        return "its name holds the key that the server was sent"
    if len(name) > _MAX_NAME_CHARS:
        return f"a name of {len(name):,} characters is longer than {_MAX_NAME_CHARS:,}"
    if not name.strip():
        return "its name is blank"
    fault = next(faults(name), None)
    return None if fault is None else f"of {ascii(name)[:60]}, {fault[0]}"


class _Timed(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Limits the time of the whole answer, where urllib itself limits that of each read."""

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open over a connection with such a limit."""
        return self.do_open(partial(timed.connection, secure=False), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """The same over TLS."""
        return self.do_open(partial(timed.connection, secure=True), request)


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would hand the key to whatever server the answer names."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        """Take the redirect as the answer."""


def _opener(url: str) -> urllib.request.OpenerDirector:
    """A proxy of the environment is for other machines, never for this one."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return urllib.request.build_opener(urllib.request.ProxyHandler({}), _StayHere, _Timed)
    return urllib.request.build_opener(_StayHere, _Timed)


def _get(url: str, api_key: str | None) -> tuple[Any, str | None]:
    """What is answered there as JSON, or why nothing is."""
    request = urllib.request.Request(url)  # noqa: S310 - the scheme was checked: http or https
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with _opener(url).open(request, timeout=TIMEOUT_S) as reply:
            body = reply.read(_MAX_BYTES + 1)
        if len(body) > _MAX_BYTES:
            return None, f"an answer larger than {_MAX_BYTES >> 20} MiB"
        return json.loads(body), None
    except urllib.error.HTTPError as error:
        with error:
            return None, f"HTTP {error.code} {error.reason}"
    except urllib.error.URLError as error:
        return None, str(error.reason)
    except http.client.HTTPException as error:
        return None, f"what answers there speaks no HTTP: {error!r}"
    except TimeoutError:
        return None, f"no whole answer after {TIMEOUT_S:g} s"
    except OSError as error:
        return None, str(error)
    except (ValueError, RecursionError):
        return None, "the answer is no JSON"
