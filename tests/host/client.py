"""Speaks to the WebUI's API and to ours."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

#: What every request asks for unless it says otherwise.
REQUEST: dict[str, Any] = {
    "prompt": "a photo of a cat",
    "negative_prompt": "",
    "width": 64,
    "height": 64,
    "steps": 4,
    "sampler_name": "Euler a",
    "seed": 1,
    "cfg_scale": 7,
    "save_images": False,
}


class AnswerError(Exception):
    """An answer that is no success. status: HTTP; body: JSON, or text."""

    def __init__(self, status: int, body: Any, headers: Mapping[str, str]) -> None:
        super().__init__(f"{status} {json.dumps(body)[:500]}")
        self.status, self.body, self.headers = status, body, headers


@dataclass(frozen=True)
class Pictures:
    """pixels: SHA-256 of each picture's decoded pixels; files: of the PNG as sent; texts: its infotext."""

    pixels: tuple[str, ...]
    files: tuple[str, ...]
    texts: tuple[str, ...]
    encoded: tuple[str, ...]
    duration_s: float


class Client:
    """url: without a slash at its end; authorization: a header's value."""

    def __init__(self, url: str, authorization: str | None = None) -> None:
        self.url, self.authorization = url, authorization

    # ------------------------------------------------------------------------------------------------ HTTP

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 120,
    ) -> tuple[int, Any, Mapping[str, str]]:
        """(status, JSON or bytes, headers), whatever the status is."""
        content = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        every = {"Content-Type": "application/json"} if content is not None else {}
        if self.authorization:
            every["Authorization"] = self.authorization
        request = urllib.request.Request(self.url + path, content, {**every, **(headers or {})}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                status, found, sent = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            status, found, sent = error.code, error.read(), error.headers
        is_json = "json" in (sent.get("Content-Type") or "")
        return status, json.loads(found) if is_json else found, sent

    def _expect(self, method: str, path: str, body: Any = None) -> Any:
        status, found, headers = self.call(method, path, body)
        if status >= 300:
            raise AnswerError(status, found if not isinstance(found, bytes) else found.decode("utf-8", "replace"), headers)
        return found

    def get(self, path: str) -> Any:
        return self._expect("GET", path)

    def post(self, path: str, body: Any) -> Any:
        return self._expect("POST", path, body)

    def wait_until_it_answers(self, process: subprocess.Popen[bytes] | None, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while True:
            try:
                self.call("GET", "/vram-pilot-probe/startup")
                return
            except (urllib.error.URLError, ConnectionError):
                if (process is not None and process.poll() is not None) or time.monotonic() > deadline:
                    raise
                pause.wait(0.05)  # the socket opens some moments after the log says so

    # ------------------------------------------------------------------------------------------------ pictures

    def txt2img(self, mode: Any = None, **request: Any) -> Pictures:
        return self._generate("/sdapi/v1/txt2img", mode, request)

    def img2img(self, image: str, mode: Any = None, **request: Any) -> Pictures:
        return self._generate("/sdapi/v1/img2img", mode, {"init_images": [image], "denoising_strength": 0.6, **request})

    def _generate(self, path: str, mode: Any, request: Mapping[str, Any]) -> Pictures:
        """mode: None, or what `alwayson_scripts` carries: a mapping, a name, or a list of arguments."""
        begun = time.monotonic()
        answer = self.post(path, {**REQUEST, **request, **with_mode(mode)})
        return pictures(answer, time.monotonic() - begun)

    # ------------------------------------------------------------------------------------------------ ours

    def state(self) -> Any:
        return self.get("/vram-pilot/v1/state")

    def mode(self, mode: str, scope: str | None = None, **more: Any) -> Any:
        """Asks for a mode."""
        return self.post("/vram-pilot/v1/mode", {"mode": mode, **more, **({"scope": scope} if scope else {})})

    def newest_session(self) -> Any:
        """The session of the job that ended last, whole."""
        found = self.get("/vram-pilot/v1/sessions?limit=1")["sessions"][0]
        return self.get(f"/vram-pilot/v1/sessions/{found['id']}")


def with_mode(mode: Any) -> dict[str, Any]:
    if mode is None:
        return {}
    arguments = mode if isinstance(mode, list) else [{"mode": mode} if isinstance(mode, str) else mode]
    return {"alwayson_scripts": {"VRAM Pilot": {"args": arguments}}}


def pictures(answer: Mapping[str, Any], duration_s: float = 0.0) -> Pictures:
    """What an answer of the WebUI's API holds."""
    encoded = [image.split(",")[-1] for image in answer["images"]]
    files = [base64.b64decode(image) for image in encoded]
    texts = tuple(json.loads(answer["info"])["infotexts"])
    return Pictures(
        tuple(map(pixels_of, files)), tuple(hashlib.sha256(f).hexdigest() for f in files), texts, tuple(encoded), duration_s
    )


def pixels_of(file: bytes) -> str:
    """SHA-256 over size and pixels, whatever else the file holds."""
    with Image.open(io.BytesIO(file)) as image:
        whole = image.convert("RGB")
        return hashlib.sha256(f"{whole.size}".encode() + whole.tobytes()).hexdigest()
