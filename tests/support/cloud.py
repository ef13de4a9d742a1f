"""A cloud's metadata and token services."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

ROLE = "arn:aws:iam::123456789012:role/Gate"
ARN = "arn:aws:sts::123456789012:assumed-role/Gate/reauth-proxy"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
EMAIL = "gate@demo.iam.gserviceaccount.com"
_STS = "https://sts.amazonaws.com/doc/2011-06-15/"


class Cloud:
    """The services of a cloud at one address; credentials have `lives` seconds left.

    Each request is answered with new ones, whose session token is `PRINCIPAL+END=`.
    """

    def __init__(self) -> None:
        self.lives = 3600.0
        self.status = 200
        self.keys = 0
        self.asked: list[str] = []
        self.sessions: list[str] = []
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(b"")

            do_PUT = do_GET  # noqa: N815 - as its base class wants it

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])))

            def _answer(self, form: bytes) -> None:
                cloud.asked.append(self.path)
                fields = {key: one for key, (one, *_) in parse_qs(form.decode()).items()}
                body = cloud.answer(urlsplit(self.path).path, fields)
                self.send_response(cloud.status)
                self.send_header("Location", "http://127.0.0.1:9/stolen")
                self.send_header("Metadata-Flavor", "Google")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Do not log to stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead the clouds' libraries here, and to nothing else."""
        return {
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{self.address}/",
            "AWS_ENDPOINT_URL_STS": f"http://{self.address}",
            "GCE_METADATA_HOST": self.address,
            "GCE_METADATA_IP": self.address,
            "GCE_METADATA_TIMEOUT": "60",
            "CLOUDSDK_CONFIG": os.devnull,
            "IDENTITY_ENDPOINT": f"http://{self.address}/token",
            "IDENTITY_HEADER": "of the machine",
            "AWS_METADATA_SERVICE_TIMEOUT": "60",
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()

    def _credentials(self, token: str, principal: str) -> dict[str, str]:
        self.keys += 1
        ends = datetime.fromtimestamp(time.time() + self.lives, UTC)
        return {
            token: f"{principal}+{ends.timestamp():.0f}=",
            "AccessKeyId": f"ASIA{self.keys:016}",
            "SecretAccessKey": SECRET,
            "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def _token(self) -> bytes:
        self.keys += 1
        lives = {"expires_in": int(self.lives), "expires_on": str(int(time.time() + self.lives))}
        named = {"access_token": f"ya29.{self.keys}", "token_type": "Bearer", "resource": "hub"}
        return json.dumps(lives | named).encode()

    def answer(self, path: str, form: dict[str, str]) -> bytes:
        if self.status != 200:
            return b"{}"
        match path, form.get("Action"):
            case _, "GetCallerIdentity":
                result = f"<GetCallerIdentityResult><Arn>{ARN}</Arn></GetCallerIdentityResult>"
            case _, "AssumeRoleWithWebIdentity":
                self.sessions.append(form["RoleSessionName"])
                principal = f"{ARN.rpartition('/')[0]}/{self.sessions[-1]}"
                keys = self._credentials("SessionToken", principal)
                members = "".join(f"<{name}>{value}</{name}>" for name, value in keys.items())
                result = (
                    "<AssumeRoleWithWebIdentityResult>"
                    f"<Credentials>{members}</Credentials></AssumeRoleWithWebIdentityResult>"
                )
            case "/latest/meta-data/iam/security-credentials/", _:
                return b"Gate"
            case "/latest/meta-data/iam/security-credentials/Gate", _:
                keys = self._credentials("Token", ARN)
                return json.dumps(keys | {"Code": "Success"}).encode()
            case "/computeMetadata/v1/instance/service-accounts/default/", _:
                return json.dumps({"email": EMAIL, "scopes": [], "aliases": ["default"]}).encode()
            case token, _ if token.endswith("/token"):
                return self._token()
            case _:
                return b"a-session-token"
        action = form["Action"]
        return f'<{action}Response xmlns="{_STS}">{result}</{action}Response>'.encode()
