"""A cloud's metadata and token services."""

import json
import os
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.support.http_service import HttpService

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
        self.service = HttpService(
            self._answer,
            headers={"Location": "http://127.0.0.1:9/stolen", "Metadata-Flavor": "Google"},
        )
        self.address = self.service.address

    def _answer(self, request: BaseHTTPRequestHandler, form: bytes) -> tuple[int, bytes]:
        self.asked.append(request.path)
        fields = {key: one for key, (one, *_) in parse_qs(form.decode()).items()}
        body = self.answer(urlsplit(request.path).path, fields)
        return self.status, body

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
