"""Single attempts to send webhooks, emails and Apprise messages to working and broken servers."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.policy import default as modern
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from crawler.fetch import guard
from crawler.notify.channels import Channel
from crawler.notify.event_views import EventView
from crawler.notify.messages import Message, Templates, message_of
from crawler.notify.senders import MAX_THREADS, DeliveryFailed, send
from tests.integration.certificates import authority, certificate
from tests.integration.notify.webhooks import Answer, Hooks, Receiver, serving, status
from tests.unit.channels import channels_in

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
EVENT = EventView("changed", "shop", "https://shop.example/lamp", "Lämp", NOON)
MESSAGE = message_of("m1", [EVENT])
SECONDS = 20.0


def hang(request: Receiver) -> None:
    """Send an endless header line, one byte at a time."""
    request.wfile.write(b"HTTP/1.1 2")
    while not request.server.is_over.wait(0.05):
        try:
            request.wfile.write(b"0")
        except OSError:
            return


def write(data: bytes) -> Answer:
    def answer(request: Receiver) -> None:
        request.wfile.write(data)
        request.close_connection = True

    return answer


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setenv("PASSWORD", "pass word")


def channel(**keys: Any) -> Channel:
    return channels_in({"channels": {"team": keys}}, "notify.toml")["team"]


def webhook(hooks: Hooks, path: str = "/hook?a=b") -> Channel:
    return channel(webhook=f"http://{hooks.place}{path}", secret="${SECRET}")


def deliver(to: Channel, message: Message = MESSAGE, seconds: float = SECONDS) -> None:
    asyncio.run(send(to, message, seconds))


def failure_of(to: Channel, message: Message = MESSAGE, seconds: float = SECONDS) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as raised:
        deliver(to, message, seconds)
    assert "\n" not in raised.value.reason
    assert len(raised.value.reason) <= 300
    return raised.value


def test_webhook_is_signed(hooks: Hooks) -> None:
    deliver(webhook(hooks))
    ((path, headers, body),) = hooks.received
    assert path == "/hook?a=b"
    data = Webhook(SECRET).verify(body, headers)
    assert (data["type"], data["timestamp"]) == ("changed", "2026-05-01T12:00:00Z")
    assert data["data"]["events"][0]["title"] == "Lämp"
    names = {name.lower(): value for name, value in headers.items()}
    assert (names["webhook-id"], names["host"]) == ("m1", hooks.place)
    other = "whsec_" + base64.b64encode(b"t" * 32).decode()
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body.replace(b"shop", b"shot"), headers)


@pytest.mark.parametrize("code", [200, 201, 204, 299])
def test_any_2xx_is_a_success(hooks: Hooks, code: int) -> None:
    hooks.answers = [status(code)]
    deliver(webhook(hooks))


@pytest.mark.parametrize("code", [302, 307, 400, 404, 410, 500])
def test_any_other_status_is_a_failure(hooks: Hooks, code: int) -> None:
    hooks.answers = [status(code, Location="/elsewhere")]
    assert failure_of(webhook(hooks)).reason == f"HTTP {code}"
    # Redirects are not followed.
    assert len(hooks.received) == 1


def test_failure_reason_is_the_start_of_the_response(hooks: Hooks) -> None:
    hooks.answers = [status(422, b"unknown\r\n\x1b[31mtype\xff " + b"x" * 1_000_000)]
    reason = failure_of(webhook(hooks)).reason
    assert reason.startswith("HTTP 422: unknown [31mtype\ufffd xxx")


@pytest.mark.parametrize(
    ("value", "minimum", "maximum"),
    [
        ("120", 120, 120),
        ("99999999", 6 * 3600, 6 * 3600),
        (format_datetime(NOON - timedelta(days=900), usegmt=True), 0, 0),
    ],
    ids=["seconds", "too many seconds", "past date"],
)
def test_retry_after_is_reported(hooks: Hooks, value: str, minimum: float, maximum: float) -> None:
    hooks.answers = [status(429, Retry_After=value)]
    seconds = failure_of(webhook(hooks)).retry_after_seconds
    assert seconds is not None
    assert minimum <= seconds <= maximum


def test_retry_after_date_is_converted_to_seconds(hooks: Hooks) -> None:
    in_ten_minutes = datetime.now(UTC) + timedelta(minutes=10)
    hooks.answers = [status(429, Retry_After=format_datetime(in_ten_minutes, usegmt=True))]
    seconds = failure_of(webhook(hooks)).retry_after_seconds
    assert seconds is not None
    assert 500 <= seconds <= 600


@pytest.mark.parametrize("value", ["soon", "-5", "1e9", "9" * 50])
def test_an_invalid_retry_after_is_ignored(hooks: Hooks, value: str) -> None:
    hooks.answers = [status(503, Retry_After=value)]
    assert failure_of(webhook(hooks)).retry_after_seconds is None


def test_retried_webhook_keeps_its_id(hooks: Hooks) -> None:
    hooks.answers = [status(503), status(204)]
    failure_of(webhook(hooks))
    deliver(webhook(hooks))
    ids = [Webhook(SECRET).verify(body, headers) and headers["webhook-id"]
           for _, headers, body in hooks.received]  # fmt: skip
    assert ids == ["m1", "m1"]


def test_slow_receiver_times_out(hooks: Hooks) -> None:
    hooks.answers = [hang]
    started = time.monotonic()
    assert failure_of(webhook(hooks), seconds=0.3).reason == "no response within 0.3 s"
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "closed the connection"),
        (b"220 mail.example.com\r\n\r\n", "invalid HTTP response"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "invalid HTTP response"),
    ],
)
def test_invalid_http_response_is_a_failure(hooks: Hooks, data: bytes, reason: str) -> None:
    hooks.answers = [write(data)]
    assert reason in failure_of(webhook(hooks)).reason


def test_refused_connection_is_a_failure() -> None:
    with Hooks() as server:
        to = webhook(server)
    assert failure_of(to).reason == "connection failed: Connection refused"


def test_webhook_certificates_are_verified(
    hooks: Hooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer, root = authority(tmp_path)
    context = server_context(certificate(tmp_path, signed_by=signer))
    hooks.socket = context.wrap_socket(hooks.socket, server_side=True)
    to = channel(webhook=f"https://localhost:{hooks.server_port}/", secret="${SECRET}")
    assert failure_of(to).reason.startswith("TLS: ")
    assert hooks.received == []
    monkeypatch.setenv("SSL_CERT_FILE", str(root))
    deliver(to)
    other = channel(webhook=f"https://127.0.0.1:{hooks.server_port}/", secret="${SECRET}")
    assert "IP address mismatch" in failure_of(other).reason
    assert len(hooks.received) == 1


def server_context(files: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    return context


class MailServer:
    """Mail server on a free port that records commands and emails.

    refused: recipients to refuse
    """

    def __init__(self, tls: ssl.SSLContext | None = None, *, starttls: bool = False) -> None:
        self.tls, self.starttls = tls, starttls
        self.refused: set[str] = set()
        self.commands: list[str] = []
        self.emails: list[bytes] = []
        self.hangs = self.is_busy = False
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ")
        while self.hangs:
            # Each byte of this endless greeting resets the read timeout.
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.write(b"test\r\n")
        while line := await reader.readline():
            text = line.decode().strip()
            self.commands.append(text)
            verb, _, rest = text.partition(" ")
            answer = "250 ok"
            if verb.upper() == "EHLO":
                answer = "250-test\r\n250-STARTTLS\r\n250 AUTH PLAIN"
                answer = answer if self.starttls else answer.replace("250-STARTTLS\r\n", "")
            elif verb.upper() == "STARTTLS":
                writer.write(b"220 go\r\n")
                await writer.start_tls(self.tls)  # type: ignore[arg-type]
                continue
            elif verb.upper() == "AUTH":
                answer = "235 welcome"
            elif verb.upper() == "MAIL" and self.is_busy:
                answer = "451 try\x1b[1m later"
            elif verb.upper() == "RCPT" and any(name in rest for name in self.refused):
                answer = "550 nobody"
            elif verb.upper() == "DATA":
                writer.write(b"354 go\r\n")
                self.emails.append(await reader.readuntil(b"\r\n.\r\n"))
            writer.write(f"{answer}\r\n".encode())
            if verb.upper() == "QUIT":
                return


@contextmanager
def running(server: MailServer) -> Iterator[MailServer]:
    """Run a mail server in an event loop on its own thread."""
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()
    started = threading.Event()

    async def main() -> None:
        tls = None if server.starttls else server.tls
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
        server.port = listening.sockets[0].getsockname()[1]
        started.set()
        await stopped.wait()
        listening.close()
        open_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()


def mail(server: MailServer, **keys: Any) -> Channel:
    smtp = {
        "host": "localhost", "port": server.port, "security": "none",
        "from": "Freshet <freshet@example.com>", "to": ["a@example.org", "b@example.org"],
    }  # fmt: skip
    return channel(smtp=smtp | keys)


def test_email_escapes_headers_and_has_two_parts() -> None:
    hostile = EventView("changed", "shop", "https://shop.example/", "L\r\nBcc: x@y.z", NOON)
    message = message_of("m1", [hostile], templates=Templates(html="<p>{{ event.url }}</p>"))
    with running(MailServer()) as server:
        deliver(mail(server, user="me", password="${PASSWORD}"), message)
    email = message_from_bytes(server.emails[0].replace(b"\r\n..", b"\r\n."), policy=modern)
    assert email["Message-ID"] == "<m1@example.com>"
    assert email["Subject"] == "shop: changed: L Bcc: x@y.z"
    assert (email["From"], email["To"]) == (
        "Freshet <freshet@example.com>", "a@example.org, b@example.org",
    )  # fmt: skip
    assert "Bcc" not in email
    assert email["Auto-Submitted"] == "auto-generated"
    # A digest of last week's events must not be listed among last week's emails.
    assert abs(email["Date"].datetime - datetime.now(UTC)) < timedelta(minutes=1)
    text, html = email.iter_parts()
    assert text.get_content().startswith("Changed: L")
    assert html.get_content().strip() == "<p>https://shop.example/</p>"
    login = base64.b64encode(b"\0me\0pass word").decode()
    assert f"AUTH PLAIN {login}" in server.commands
    assert [line for line in server.commands if "x@y.z" in line] == []


def test_an_email_has_a_table_and_the_same_as_text() -> None:
    hostile = f"Lämp <b>\r\n.\r\n{'x' * 5000}"
    before, after = ({"price": {"amount": n, "currency": "£"}, "about": hostile} for n in (20, 18))
    event = EventView("changed", "shop", "https://shop.example/", hostile, NOON, rule="cheap")
    with running(MailServer()) as server:
        to = mail(server)
        message = message_of(
            "m1", [event.with_contents(before, after)] * 3, templates=to.templates,
            web_url="https://freshet.example",
        )  # fmt: skip
        deliver(to, message)
    email = message_from_bytes(server.emails[0].replace(b"\r\n..", b"\r\n."), policy=modern)
    assert email.get_content_type() == "multipart/alternative"
    text, table = email.iter_parts()
    assert (text.get_content_type(), table.get_content_type()) == ("text/plain", "text/html")
    assert "price: £20 → £18" in text.get_content()
    shown = table.get_content()
    assert "\N{MINUS SIGN}10 %" in shown
    assert "Lämp &lt;b&gt; . xxx" in shown
    assert 'href="https://freshet.example/changes"' in shown
    assert max(map(len, server.emails[0].split(b"\r\n"))) < 1000


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_mail_server_certificates_are_verified(
    security: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer, root = authority(tmp_path)
    context = server_context(certificate(tmp_path, signed_by=signer))
    with running(MailServer(context, starttls=security == "starttls")) as server:
        assert failure_of(mail(server, security=security)).reason.startswith("TLS: ")
        monkeypatch.setenv("SSL_CERT_FILE", str(root))
        deliver(mail(server, security=security))
        other = mail(server, security=security, host="127.0.0.1")
        assert "IP address mismatch" in failure_of(other).reason
    assert len(server.emails) == 1


def test_mail_server_without_starttls_receives_nothing() -> None:
    with running(MailServer()) as server:
        assert "STARTTLS" in failure_of(mail(server, security="starttls")).reason
    assert server.emails == []


def test_busy_mail_server_is_a_failure() -> None:
    with running(MailServer()) as server:
        server.is_busy = True
        assert failure_of(mail(server)).reason == "mail server: 451 try [1m later"


def test_fails_only_if_all_recipients_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    with running(MailServer()) as server:
        server.refused = {"a@example.org"}
        deliver(mail(server))
        assert "Mail server refused recipients: a@example.org" in caplog.text
        server.refused = {"a@example.org", "b@example.org"}
        assert (
            "refused all recipients: a@example.org: 550 nobody" in failure_of(mail(server)).reason
        )
    assert len(server.emails) == 1


def test_hanging_mail_server_times_out_and_its_thread_ends() -> None:
    with running(MailServer()) as server:
        server.hangs = True
        started = time.monotonic()
        assert failure_of(mail(server), seconds=0.3).reason == "no response within 0.3 s"
        assert time.monotonic() - started < 5
        deadline = time.monotonic() + 5
        while deliveries() and time.monotonic() < deadline:
            time.sleep(0.02)
    assert deliveries() == []


def deliveries() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "notification"]


def test_apprise_sends_to_each_url(hooks: Hooks) -> None:
    deliver(channel(apprise=[f"json://{hooks.place}/one", f"json://{hooks.place}/two"]))
    assert [path for path, _, _ in hooks.received] == ["/one", "/two"]
    body = json.loads(hooks.received[0][2])
    assert (body["title"], body["message"]) == ("shop: changed: Lämp", MESSAGE.text.strip())


def test_apprise_sends_again_only_to_urls_that_failed(hooks: Hooks) -> None:
    urls = [f"json://{hooks.place}/{name}" for name in ("one", "two?rto=9", "three")]
    three = channel(apprise=urls)
    broken = {"/two": status(500)}
    hooks.answers = [
        lambda request: broken.get(request.path.partition("?")[0], status(204))(request)
    ]
    failure = failure_of(three)
    assert len(failure.accepted) == 2
    asyncio.run(send(channel(apprise=urls[:1]), MESSAGE, SECONDS, (), failure.accepted))
    broken["/two"] = hang
    with pytest.raises(DeliveryFailed) as late:
        asyncio.run(send(three, MESSAGE, 0.5, (), failure.accepted))
    assert late.value.accepted == failure.accepted
    broken.clear()
    asyncio.run(send(three, MESSAGE, SECONDS, (), late.value.accepted))
    paths = [path.partition("?")[0] for path, _, _ in hooks.received]
    assert paths == ["/one", "/two", "/three", "/two", "/two"]


def test_apprise_failure_hides_secrets(hooks: Hooks) -> None:
    hooks.answers = [status(404)]
    reason = failure_of(channel(apprise=f"json://{hooks.place}/?password=${{SECRET}}")).reason
    assert reason.startswith("Apprise: ")
    assert "error=404" in reason
    assert SECRET not in reason


HOSTILE = (
    "**Sale** [here](http://evil.example) @everyone <!channel> <@U1> a_b https://x.example/a_b"
)


def hostile() -> Message:
    return message_of("m1", [EventView("changed", "shop", "https://x.example/a_b", HOSTILE, NOON)])


def test_chat_that_renders_markdown_shows_titles_of_pages_as_they_are(hooks: Hooks) -> None:
    hooks.answers = [status(200)]
    deliver(channel(apprise=f"mmost://{hooks.place}/{'t' * 26}"), hostile())
    text = json.loads(hooks.received[0][2])["text"]
    assert r"\*\*Sale\*\* \[here\](http://evil.example)" in text
    assert r"a\_b https://x.example/a_b" in text
    # The address of the page remains a link.
    assert "\nhttps://x.example/a_b\n" in text
    assert not [mention for mention in ("@everyone", "<!channel", "<@U1") if mention in text]


def test_no_page_mentions_the_members_of_a_chat(hooks: Hooks) -> None:
    deliver(channel(apprise=f"json://{hooks.place}/"), hostile())
    body = json.loads(hooks.received[0][2])
    for text in (body["title"], body["message"]):
        assert not [mention for mention in ("@everyone", "<!channel", "<@U1") if mention in text]
        assert "**Sale**" in text
    # A template of the user can.
    templates = Templates(text="@everyone: {{ event.title }}")
    message = message_of(
        "m1", [EventView("changed", "shop", "", "Sale", NOON)], templates=templates
    )
    deliver(channel(apprise=f"json://{hooks.place}/"), message)
    assert json.loads(hooks.received[1][2])["message"] == "@everyone: Sale"


@pytest.mark.parametrize(("lines", "parts"), [(10, 1), (150, 3), (1500, 5)])
def test_long_message_is_split_by_the_limit_of_the_service(
    hooks: Hooks, lines: int, parts: int
) -> None:
    templates = Templates(text="{% for event in events %}{{ event.title }}\n{% endfor %}")
    titles = [
        f"Minutes of meeting {n}: decisions about the mill, the bridge and the bank"
        for n in range(lines)
    ]
    text = "\n".join(titles[:50] + titles[50:])
    message = message_of("m1", [EventView("changed", "shop", "", text, NOON)], templates=templates)
    hooks.answers = [status(200)]
    deliver(channel(apprise=f"mmost://{hooks.place}/{'t' * 26}"), message)
    texts = [json.loads(body)["text"] for _, _, body in hooks.received]
    assert len(texts) == parts
    assert max(map(len, texts)) <= 4000
    assert titles[0] in texts[0]
    assert (titles[-1] in texts[-1], "cut off here" in texts[-1]) == (lines < 1500, lines == 1500)


@pytest.mark.parametrize(
    ("code", "is_final"), [(400, True), (413, True), (422, True), (404, False), (500, False)]
)
def test_refused_message_is_not_tried_again(hooks: Hooks, code: int, *, is_final: bool) -> None:
    hooks.answers = [status(code)]
    assert failure_of(webhook(hooks)).is_final is is_final
    assert failure_of(channel(apprise=f"json://{hooks.place}/")).is_final is is_final
    hooks.answers = [status(code), status(500)]
    two = channel(apprise=[f"json://{hooks.place}/{n}" for n in (1, 2)])
    assert failure_of(two).is_final is False


def test_apprise_rejects_unknown_url_schemes() -> None:
    unknown = channel(apprise=["json://127.0.0.1:9", "nonsense://${SECRET}"])
    reason = failure_of(unknown).reason
    assert reason.startswith("Apprise does not accept URL 2 (nonsense://…).")


def test_hanging_apprise_service_blocks_no_other_channel(hooks: Hooks) -> None:
    hooks.answers = [
        lambda request: (hang if request.path.startswith("/slow") else status(204))(request)
    ]

    async def send_both() -> list[BaseException | None]:
        slow = channel(apprise=f"json://{hooks.place}/slow?rto=9")
        first = asyncio.create_task(send(slow, MESSAGE, 0.5))
        await send(webhook(hooks), MESSAGE, SECONDS)
        assert not first.done()
        return await asyncio.gather(first, return_exceptions=True)

    (error,) = asyncio.run(send_both())
    assert isinstance(error, DeliveryFailed)
    assert error.reason == "no response within 0.5 s"


@pytest.mark.soak
def test_hanging_service_uses_a_bounded_number_of_threads(hooks: Hooks) -> None:
    hooks.answers = [
        lambda request: (hang if request.path.startswith("/slow") else status(204))(request)
    ]
    slow = channel(apprise=f"json://{hooks.place}/slow?rto=9")
    works = channel(apprise=f"json://{hooks.place}/works")

    async def many() -> list[str]:
        attempts = (send(slow, MESSAGE, 0.2) for _ in range(MAX_THREADS + 1))
        errors = await asyncio.gather(*attempts, return_exceptions=True)
        await send(works, MESSAGE, SECONDS)
        return [str(error) for error in errors]

    # Threads of earlier tests and of the working channel may still be about to end.
    earlier = len(deliveries())
    reasons = asyncio.run(many())
    assert len(deliveries()) <= earlier + MAX_THREADS + 1
    assert f"{MAX_THREADS} earlier deliveries are still waiting for a response" in reasons
    hooks.is_over.set()
    for thread in deliveries():
        thread.join(20)
    assert deliveries() == []


def test_failure_reason_hides_secrets(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "to/ken?1234")
    hooks.answers = [status(404, b"no /hook/to%2Fken%3F1234 (to/ken?1234) at this server")]
    to = channel(webhook=f"http://{hooks.place}/hook/${{TOKEN}}", secret="${SECRET}")
    assert failure_of(to).reason == "HTTP 404: no /hook/*** (***) at this server"


def resolve(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Resolve every host name to one address."""

    async def resolved(host: str, port: int) -> list[guard.Address]:
        return [guard.literal(host) or ipaddress.ip_address(address)]

    monkeypatch.setattr(guard, "resolved", resolved)


@pytest.mark.parametrize(
    "url", ["http://name.test/", "http://169.254.169.254/", "http://0.0.0.0/", "http://[ff02::1]/"]
)
def test_webhooks_to_private_addresses_are_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, "10.0.0.1")
    reason = failure_of(channel(webhook=url, secret="${SECRET}")).reason
    assert "is not on the public Internet" in reason or "has no usable address" in reason


def test_allowed_hosts_may_be_private(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, "127.0.0.1")
    place = f"name.test:{hooks.server_port}"
    to = channel(webhook=f"http://{place}/", secret="${SECRET}")
    assert "is not on the public Internet" in failure_of(to).reason
    asyncio.run(send(to, MESSAGE, SECONDS, [place]))
    ((_, headers, _),) = hooks.received
    assert {name.lower(): value for name, value in headers.items()}["host"] == place
