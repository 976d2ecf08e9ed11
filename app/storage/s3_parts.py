"""Parts of S3 objects over connections of our own, with a third of the CPU time per byte of aiobotocore.

s3fs signs the URL of each part, so that its settings and credentials apply; threads transfer the bytes without a copy.
A part that fails is transferred by s3fs instead, whose retries and errors are the only ones
(docs/decisions/0102-parts-by-signed-urls.md).
"""

from __future__ import annotations

import logging
import os
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from app.outages import store_is_unavailable

if TYPE_CHECKING:
    from botocore.awsrequest import AWSResponse
    from botocore.httpsession import URLLib3Session

logger = logging.getLogger(__name__)

T = TypeVar("T")

VALID_SECONDS = 900
"""A URL is used at once. This long, because the clocks of machines differ."""

SKIPPED = 64
"""How many parts are left to s3fs after a failure."""

CONNECT_SECONDS = 10

READ_SECONDS = 30
"""Between two pieces that arrive."""


class DirectParts:
    """file_system: of s3fs. connections: how many threads send or receive at once."""

    def __init__(self, file_system: Any, connections: int) -> None:
        self._fs, self._connections = file_system, connections
        self._skip = 0
        self._lock = Lock()
        self._session: URLLib3Session | None = None

    def put(self, place: Mapping[str, str], number: int, chunk: bytes | memoryview) -> str | None:
        """Upload a part; returns its ETag, or None if s3fs must do it. place: bucket, key and upload."""
        return self._try(partial(self._put, place, number, chunk))

    def get(self, path: str, begin: int, end: int) -> bytes | None:
        """These bytes of an object; None if s3fs must read them."""
        return self._try(partial(self._get, path, begin, end))

    def _put(self, place: Mapping[str, str], number: int, chunk: bytes | memoryview) -> str:
        checksum = b64encode(zlib.crc32(chunk).to_bytes(4, "big")).decode()
        part = {"UploadId": place["UploadId"], "PartNumber": number, "ChecksumCRC32": checksum}
        url = self._sign(f"{place['Bucket']}/{place['Key']}", client_method="upload_part", **part)
        answer = self._answer("PUT", url, {"x-amz-checksum-crc32": checksum}, chunk, status=200)
        return str(answer.headers["ETag"])

    def _get(self, path: str, begin: int, end: int) -> bytes:
        wanted = f"bytes={begin}-{end - 1}"
        answer = self._answer("GET", self._sign(path), {"Range": wanted}, None, status=206)
        if not answer.headers.get("Content-Range", "").startswith(f"{wanted.replace('=', ' ')}/"):
            answer.raw.close()
            raise ConnectionError("the response has other bytes than requested")
        part: bytes = answer.raw.read(end - begin, decode_content=False)
        if len(part) != end - begin:
            raise ConnectionError(f"{len(part)} of {end - begin} bytes came")
        return part

    def _sign(self, path: str, **params: Any) -> str:
        return str(self._fs.sign(path, expiration=VALID_SECONDS, **params))

    def _answer(self, method: str, url: str, headers: Mapping[str, str], body: Any, *, status: int) -> AWSResponse:
        from botocore.awsrequest import AWSPreparedRequest

        request = AWSPreparedRequest(method, url, headers, body, stream_output=method == "GET")
        answer = self._open_session().send(request)
        if answer.status_code != status:
            answer.raw.close()  # it may send the whole object
            raise ConnectionError(f"the answer was {answer.status_code}")
        return answer

    def _open_session(self) -> URLLib3Session:
        """A session of botocore, with its proxies and errors."""
        from botocore.httpsession import URLLib3Session
        from botocore.utils import get_environ_proxies

        with self._lock:
            self._session = self._session or URLLib3Session(
                verify=self._fs.client_kwargs.get("verify", os.environ.get("AWS_CA_BUNDLE") or True),
                proxies=get_environ_proxies(self._sign("bucket/key")),
                timeout=(CONNECT_SECONDS, READ_SECONDS),
                max_pool_connections=self._connections,
            )
            return self._session

    def _try(self, do: Callable[[], T]) -> T | None:
        if self._skip or self._fs.req_kw or self._fs.s3_additional_kwargs:  # which s3fs adds to its own requests
            self._skip = max(0, self._skip - 1)
            return None
        try:
            return do()
        except Exception as problem:  # of any library
            if not store_is_unavailable(problem):
                raise
            self._skip = SKIPPED
            said = problem if isinstance(problem, ConnectionError) else type(problem).__name__  # others hold the URL
            logger.warning("parts of objects go through s3fs for a while, which needs more CPU: %s", said)
            return None
