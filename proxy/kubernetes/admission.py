"""Admission reviews (admission.k8s.io/v1): a request as bytes to a response as bytes; pure."""

import base64
import json
from typing import Any, Final

from proxy.kubernetes.injection import RefusedError, mapping, patch
from proxy.kubernetes.template import Object, Template

_VERSION: Final = "admission.k8s.io/v1"
_INVALID: Final = 422
"""HTTP status of an object that cannot be processed, as the API server itself uses it."""


class NotAReviewError(Exception):
    """The body of a request is no admission review of a version that is understood."""


def answer(body: bytes, template: Template) -> bytes:
    """Answer the review of a pod that is to be created; raises `NotAReviewError`."""
    request = _request(body)
    response: Object = {"uid": request["uid"], "allowed": True}
    if _is_new_pod(request):
        try:
            operations = patch(mapping(request, "object"), template)
        except RefusedError as error:
            response |= {"allowed": False, "status": _status(str(error))}
        except TypeError:  # the API server has checked types, but others may reach the port
            response |= {"allowed": False, "status": _status("a field's type is no pod's")}
        else:
            response |= _patched(operations)
    review = {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}
    return json.dumps(review).encode()


def _request(body: bytes) -> Object:
    try:
        review: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise NotAReviewError from None
    if not isinstance(review, dict) or review.get("apiVersion") != _VERSION:
        raise NotAReviewError
    request = review.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise NotAReviewError
    return request


def _is_new_pod(request: Object) -> bool:
    kind = request.get("kind")
    return (
        request.get("operation") == "CREATE"
        and not request.get("subResource")
        and isinstance(kind, dict)
        and (kind.get("group"), kind.get("kind")) == ("", "Pod")
    )


def _status(reason: str) -> Object:
    return {"code": _INVALID, "reason": "Invalid", "message": f"reauth-proxy: {reason}"}


def _patched(operations: list[Object]) -> Object:
    if not operations:
        return {}
    encoded = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"patchType": "JSONPatch", "patch": encoded}
