"""One attempt to send a message: as a signed webhook, as an email, or by Apprise.

Every attempt ends within its time limit, reads a bounded answer, verifies certificates, and raises
`DeliveryFailed` unless the receiver accepted the message.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import smtplib
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr, parsedate_to_datetime
from typing import Any, TypeVar

from crawler.fetch.post import post, reason_of
from crawler.notify.channels import (
    LONGEST_WAIT,
    PORTS,
    Channel,
    Smtp,
    StoredChannel,
    without_secrets,
)
from crawler.notify.messages import MAX_TITLE_CHARACTERS, Message
from crawler.utils.text import one_line
from crawler.utils.time import iso

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

# Bytes of an answer that are read for the reason of a failure.
MAX_ANSWER_BYTES = 1024
MAX_REASON_CHARACTERS = 300
# Statuses with which a receiver refuses a message itself, and SMTP's for one that is too large.
# Others, such as 401 and 404, end when somebody corrects the channel or the receiver.
REFUSED, TOO_LARGE = frozenset({400, 413, 414, 422}), 552
_STATUS = re.compile(r"\berror=(\d{3})\b")
# Services that render Markdown in plain text, by the schema of their URLs.
RENDERING = frozenset({
    "discord", "fluxer", "guilded", "mmost", "mmosts", "revolt", "ryver", "stoat", "zulip",
})  # fmt: skip
# Services of the web app's form that run on a server of one's own.
SELF_HOSTED = frozenset({"ntfy", "ntfys", "gotify", "gotifys", "mmost", "mmosts"})
# Messages into which a text is split that is longer than a service accepts; the rest is cut off.
# Parts end with whole lines, so that they are not full.
MAX_PARTS, FILLED = 5, 0.9
# Threads of emails and Apprise for one receiver: nothing can end a thread that a service keeps
# waiting, and a service that hangs must not take the threads of others.
MAX_THREADS = 16
DIGEST_CHARACTERS = 32
USER_AGENT = "Freshet (notifications)"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


CUT = "\n(cut off here: the service accepts no more)"


class DeliveryFailed(Exception):
    """Raised if an attempt to send a message failed; `reason` is one line without secrets.

    retry_after_seconds: delay that the receiver requests; None: none
    accepted: digests of the channel's URLs that have the message; the next attempt leaves them out
    is_final: the receiver refused the message itself, so another attempt would fail, too
    """

    def __init__(
        self,
        reason: str,
        retry_after_seconds: float | None = None,
        accepted: Collection[str] = (),
        *,
        is_final: bool = False,
    ) -> None:
        shown = " ".join(_CONTROL.sub(" ", reason[: 10 * MAX_REASON_CHARACTERS]).split())
        self.reason = shown[:MAX_REASON_CHARACTERS]
        self.retry_after_seconds = retry_after_seconds
        self.accepted = tuple(sorted(accepted))
        self.is_final = is_final
        super().__init__(self.reason)


async def send(
    channel: Channel,
    message: Message,
    timeout_seconds: float,
    private_hosts: Collection[str] = (),
    accepted: Collection[str] = (),
) -> None:
    """Send a message once; raises DeliveryFailed, whose reason has no secrets of the channel.

    After a failure, the receiver may still have received the message, if its answer was lost or
    late. The receiver can detect the repetition by the id of the message.

    private_hosts: HOST:PORT of webhooks that may be in private networks. An address in the URL of
                   the webhook may be private as well, a host name may not: DNS can change it.
    accepted:      `DeliveryFailed.accepted` of the attempts before
    """
    have = set(accepted)
    try:
        await _send(channel, message, timeout_seconds, private_hosts, have)
    except DeliveryFailed as error:
        reason = without_secrets(channel, error.reason)
        raise DeliveryFailed(
            reason, error.retry_after_seconds, have, is_final=error.is_final
        ) from error


async def _send(
    channel: Channel,
    message: Message,
    timeout_seconds: float,
    private_hosts: Collection[str],
    accepted: set[str],
) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            if isinstance(channel, StoredChannel):
                await _refuse_private(channel, private_hosts)
            if channel.webhook is not None and channel.secret is not None:
                await _post_webhook(channel.webhook, channel.secret, message, private_hosts)
            elif channel.smtp is not None:
                await _send_email(channel.smtp, message, timeout_seconds)
            else:
                urls = channel.apprise
                await _in_thread(urls, lambda: _send_by_apprise(urls, message, accepted))
    except DeliveryFailed:
        raise
    except TimeoutError:
        raise DeliveryFailed(f"no response within {timeout_seconds:g} s") from None
    except smtplib.SMTPResponseException as error:
        text = error.smtp_error
        shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        is_final = error.smtp_code == TOO_LARGE
        reason = f"mail server: {error.smtp_code} {shown}"
        raise DeliveryFailed(reason, is_final=is_final) from error
    except smtplib.SMTPRecipientsRefused as error:
        refusals = ", ".join(
            f"{address}: {code} {text.decode('utf-8', 'replace')}"
            for address, (code, text) in list(error.recipients.items())[:5]
        )
        raise DeliveryFailed(f"mail server refused all recipients: {refusals}") from error
    except (OSError, smtplib.SMTPException) as error:
        raise DeliveryFailed(reason_of(error)) from error
    except Exception as error:
        # Plugins of Apprise may raise anything.
        raise DeliveryFailed(f"{type(error).__name__}: {error}") from error


async def _refuse_private(channel: StoredChannel, private_hosts: Collection[str]) -> None:
    """Raise DeliveryFailed if a channel that a user has made leads into a private network."""
    from crawler.fetch.guard import Named, NotAllowed, addresses_for

    urls = [channel.webhook] if channel.webhook is not None else []
    for url in channel.apprise:
        scheme, _, rest = url.partition("://")
        # Of other services, the host in Apprise's URL is a token.
        if scheme in SELF_HOSTED:
            place = rest.partition("/")[0]
            urls.append(f"http{'s' * scheme.endswith('s')}://{place}/")
    if (smtp := channel.smtp) is not None:
        urls.append(f"https://{smtp.host}:{smtp.port or PORTS[smtp.security]}/")
    for url in urls:
        try:
            await addresses_for(url, "", Named.of(listed=private_hosts))
        except NotAllowed as error:
            raise DeliveryFailed(str(error)) from None


async def _post_webhook(
    url: str, secret: str, message: Message, private_hosts: Collection[str]
) -> None:
    """Send a message as a Standard Webhook; any status but 2xx is a failure."""
    from standardwebhooks import Webhook
    from w3lib.url import safe_url_string

    from crawler.fetch.guard import Named, NotAllowed, addresses_for

    now = datetime.now(UTC)
    payload = {"type": message.type, "timestamp": iso(message.at), "data": message.data}
    body = json.dumps(payload, separators=(",", ":"), allow_nan=False)
    headers = {
        "content-type": "application/json",
        "user-agent": USER_AGENT,
        "webhook-id": message.id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(message.id, now, body),
    }
    safe = safe_url_string(url)
    try:
        addresses = await addresses_for(safe, safe, Named.of(listed=private_hosts))
    except NotAllowed as error:
        raise DeliveryFailed(str(error)) from None
    answer = await post(safe, headers, body.encode(), addresses, MAX_ANSWER_BYTES)
    if not 200 <= answer.status < 300:
        end = f": {answer.text}" if answer.body else ""
        wait = _retry_after(answer.headers.get("retry-after", ""), now)
        raise DeliveryFailed(f"HTTP {answer.status}{end}", wait, is_final=answer.status in REFUSED)


def _retry_after(value: str, now: datetime) -> float | None:
    """Return the seconds in a Retry-After header, at most LONGEST_WAIT; else None."""
    value = value.strip()[:100]
    seconds: float | None = None
    if re.fullmatch(r"[0-9]{1,9}", value):
        seconds = float(value)
    else:
        with suppress(ValueError, TypeError, OverflowError):
            at = parsedate_to_datetime(value)
            seconds = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds()
    return None if seconds is None else min(max(seconds, 0.0), LONGEST_WAIT.total_seconds())


async def _send_email(smtp: Smtp, message: Message, timeout_seconds: float) -> None:
    email = _email(smtp, message)
    port = smtp.port or PORTS[smtp.security]
    context = ssl.create_default_context()
    server = (
        smtplib.SMTP_SSL(timeout=timeout_seconds, context=context)
        if smtp.security == "tls"
        else smtplib.SMTP(timeout=timeout_seconds)
    )

    def deliver() -> None:
        try:
            # `connect` of a server that was made without a host leaves the name for TLS unset.
            server._host = smtp.host  # type: ignore[attr-defined]
            server.connect(smtp.host, port)
            if smtp.security == "starttls":
                server.starttls(context=context)
            if smtp.user is not None and smtp.password is not None:
                server.login(smtp.user, smtp.password)
            if refused := server.send_message(email):
                # The others have the message, and would get it again with each attempt.
                logger.warning("Mail server refused recipients: %s", ", ".join(refused))
            # The server has accepted the message, even if it fails now.
            with suppress(smtplib.SMTPException, OSError):
                server.quit()
        finally:
            server.close()

    try:
        await _in_thread(smtp, deliver)
    except asyncio.CancelledError:
        # Ends the thread, which a server can keep waiting for longer than the timeout.
        with suppress(OSError):
            if server.sock is not None:
                server.sock.shutdown(socket.SHUT_RDWR)
        raise


def _email(smtp: Smtp, message: Message) -> EmailMessage:
    """Return the email for a message. EmailMessage rejects line breaks in headers."""
    email = EmailMessage()
    email["From"] = smtp.sender
    email["To"] = ", ".join(smtp.to)
    email["Subject"] = one_line(message.title, MAX_TITLE_CHARACTERS)
    # Not the time of the event: mail programs would list a digest among the emails of last week.
    email["Date"] = format_datetime(datetime.now(UTC))
    domain = parseaddr(smtp.sender)[1].rpartition("@")[2]
    email["Message-ID"] = f"<{message.id}@{domain}>"
    email["Auto-Submitted"] = "auto-generated"
    email.set_content(message.text)
    if message.html is not None:
        email.add_alternative(message.html, subtype="html")
    return email


def _send_by_apprise(urls: tuple[str, ...], message: Message, accepted: set[str]) -> None:
    """Send a message to all URLs, one after the other; raises DeliveryFailed if one fails.

    accepted: digests of URLs that have the message already; those that accept it are added
    """
    import apprise

    asset = apprise.AppriseAsset(
        storage_mode=apprise.PersistentStoreMode.MEMORY,
        async_mode=False,
        # Otherwise Apprise waits in its own threads, which delay the end of the process.
        service_timeout=0,
    )
    services = []
    for position, url in enumerate(urls, start=1):
        service = apprise.Apprise(asset=asset)
        if not service.add(url):
            scheme = url.partition("://")[0]
            raise DeliveryFailed(
                f"Apprise does not accept URL {position} ({scheme}://…). "
                "Compare it with the examples of the service in Apprise's documentation"
            )
        plugin: Any = service[0]
        if not re.search(r"[?&]overflow=", url, re.I):
            plugin.overflow_mode = apprise.OverflowMode.SPLIT
        services.append((hashlib.sha256(url.encode()).hexdigest()[:DIGEST_CHARACTERS], service))
    reasons: list[str] = []

    def keep(entry: Any, _service: Any) -> None:
        if len(reasons) < 10:
            # The final cut is made after secrets are replaced, so that no secret is split.
            reasons.append(str(entry.message)[: 10 * MAX_REASON_CHARACTERS])

    refused: list[bool] = []
    for (digest, service), url in zip(services, urls, strict=True):
        if digest in accepted:
            continue
        is_rendered = url.partition(":")[0].lower() in RENDERING
        title, text = message.markdown if is_rendered else message.chat
        before = len(reasons)
        if service.notify(
            body=shortened(text, int(MAX_PARTS * FILLED * service[0].body_maxlen)), title=title,
            body_format="text", log_callback=keep, log_level=logging.WARNING,
        ):  # fmt: skip
            accepted.add(digest)
        else:
            statuses = {int(each) for each in _STATUS.findall(" ".join(reasons[before:]))}
            refused.append(bool(statuses) and statuses <= REFUSED)
    if refused:
        reason = "; ".join(reasons) or "the service refused the message"
        raise DeliveryFailed(f"Apprise: {reason}", is_final=all(refused))


def shortened(text: str, max_characters: int) -> str:
    """Return a text, cut at a line if it is longer than a service accepts, with a note."""
    if len(text) <= max_characters or max_characters <= len(CUT):
        return text
    kept = text[: max_characters - len(CUT)]
    line_end = kept.rfind("\n")
    return kept[: line_end if line_end > len(kept) // 2 else len(kept)] + CUT


# Running threads by receiver.
_threads: Counter[Hashable] = Counter()
_counting = threading.Lock()


def _release_thread(receiver: Hashable) -> None:
    with _counting:
        _threads[receiver] -= 1
        if not _threads[receiver]:
            del _threads[receiver]


async def _in_thread(receiver: Hashable, work: Callable[[], Result]) -> Result:
    """Run work in a thread that neither a cancellation nor the end of the process waits for.

    `asyncio.to_thread` would keep the process alive until the slowest server has answered.

    receiver: key by which threads are limited to MAX_THREADS
    """
    with _counting:
        if _threads[receiver] >= MAX_THREADS:
            raise DeliveryFailed(
                f"{MAX_THREADS} earlier deliveries are still waiting for a response"
            )
        _threads[receiver] += 1
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not done.cancelled():
            done.set_exception(error) if error is not None else done.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 - raised again where the result is awaited
            error = raised
        finally:
            _release_thread(receiver)
        # The loop may have been closed in the meantime.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    try:
        threading.Thread(target=run, name="notification", daemon=True).start()
    except RuntimeError as error:
        _release_thread(receiver)
        raise DeliveryFailed(f"no thread for the delivery: {error}") from None
    return await done
