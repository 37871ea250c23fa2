"""Sends one notification to a webhook, from the laptop or from a host.

The address may hold a secret (most webhooks do), so no error repeats it.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any, Literal

from remote.shared.errors import HostError

SECONDS = 15.0
"""Deadline in seconds for a webhook that accepts the request but does not answer."""

Form = Literal["json", "slack"]
_ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class WebhookError(HostError):
    """The webhook did not accept a notification."""

    kind = "notify"


def body(form: Form, notification: dict[str, Any]) -> bytes:
    """Return the JSON to post: the notification itself, or the `text` that Slack and compatible services expect."""
    if form == "json":
        return json.dumps(notification).encode()
    said = "{host}: {subject} {event}: {message}".format_map(notification)
    for character, escape in _ESCAPED.items():
        said = said.replace(character, escape)
    return json.dumps({"text": said}).encode()


def post(address: str, form: Form, notification: dict[str, Any], seconds: float = SECONDS) -> None:
    """Post `notification` (`event`, `host`, `subject`, `message`, `at`); raises WebhookError if it is not accepted."""
    if not address.startswith(("http://", "https://")):
        raise WebhookError("`notify.webhook` is no http(s) address.")
    try:
        request = urllib.request.Request(  # noqa: S310
            address, data=body(form, notification), headers={"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=seconds):  # noqa: S310
            pass
    except urllib.error.HTTPError as error:
        raise WebhookError(f"`notify.webhook` answered HTTP {error.code}.") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise WebhookError(f"`notify.webhook` could not be reached: {reason}.") from error
