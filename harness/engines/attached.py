"""A server that is already running: what it serves, and what it tells of itself.

Nothing of it is changed. Its log, command line and memory are out of reach, so they are unknown
in the record.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from harness.errors import NotFound
from harness.record import ServerFacts
from harness.scenario.plain import faults
from harness.telemetry.engine import read_granted
from harness.units import Seconds

TIMEOUT_S: Seconds = 10.0


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
    return ServerFacts(
        url=url.rstrip("/"),
        launched=False,
        served_model=served,
        engine="vllm" if isinstance(version, dict) else "unknown",
        engine_version=version.get("version") if isinstance(version, dict) else None,
        granted=read_granted(root, TIMEOUT_S),
    )


def _served_model(url: str, api_key: str | None) -> str:
    listing, fault = _get(f"{url}/models", api_key)
    if fault is not None:
        raise NotFound(
            f"no OpenAI-compatible server answers there ({fault})",
            where=url,
            next_move="start it first; the URL ends in /v1; a key is read from OPENAI_API_KEY",
        )
    entries = listing.get("data") if isinstance(listing, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        name = entry.get("id") if isinstance(entry, dict) else None
        if isinstance(name, str) and not any(faults(name)):
            return name
    raise NotFound("the server lists no model", where=f"{url}/models")


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would hand the key to whatever server the answer names."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        """Take the redirect as the answer."""


def _opener(url: str) -> urllib.request.OpenerDirector:
    """A proxy of the environment is for other machines, never for this one."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return urllib.request.build_opener(urllib.request.ProxyHandler({}), _StayHere)
    return urllib.request.build_opener(_StayHere)


def _get(url: str, api_key: str | None) -> tuple[Any, str | None]:
    """What is answered there as JSON, or why nothing is."""
    request = urllib.request.Request(url)  # noqa: S310 - the scheme was checked: http or https
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with _opener(url).open(request, timeout=TIMEOUT_S) as reply:
            return json.loads(reply.read(1 << 20)), None
    except urllib.error.HTTPError as error:
        return None, f"HTTP {error.code} {error.reason}"
    except urllib.error.URLError as error:
        return None, str(error.reason)
    except http.client.HTTPException as error:
        return None, f"what answers there speaks no HTTP: {error!r:.80}"
    except OSError as error:
        return None, str(error)
    except (ValueError, RecursionError):
        return None, "the answer is no JSON"
