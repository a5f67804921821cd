"""robots.txt as text: how much of it is read, and what of that is meant for us."""

from __future__ import annotations

from collections.abc import Iterator

from protego._protego import _SITE_WIDE_DIRECTIVES, _USER_AGENT_DIRECTIVE, _extract_directive

# RFC 9309, 2.5: at least 500 KiB.
MOST_BYTES = 512 * 1024
LINE_ENDS = b"\n", b"\r"


def beginning(body: bytes, *, is_cut: bool) -> bytes:
    """As much of a file as is read; where it is cut off, its whole lines."""
    if len(body) <= MOST_BYTES and not is_cut:
        return body
    head = body[:MOST_BYTES]
    return head[: 1 + max(map(head.rfind, LINE_ENDS))]


def for_agent(text: str, agent: str) -> str:
    """The rules for one user agent, as those for all; empty where there are none.

    Protego would keep each rule of a group for each of its user agents: half a megabyte of both is
    a hundred million.
    """
    lines = list(_directives(text))
    best, most = "", 0
    for field, value, _ in lines:
        if field in _USER_AGENT_DIRECTIVE:
            for name in _names(value):
                if (score := _score(name, agent)) > most:
                    best, most = name, score
    rules = list(_of_group(lines, best)) if most else []
    return "\n".join(["User-agent: *", *rules]) if rules else ""


def _of_group(lines: list[tuple[str, str, str]], name: str) -> Iterator[str]:
    """The rules of all groups that a user agent's name stands above."""
    is_ours, among_agents = False, False
    for field, value, line in lines:
        if field in _USER_AGENT_DIRECTIVE:
            is_ours = name in _names(value) or (among_agents and is_ours)
            among_agents = True
        elif field not in _SITE_WIDE_DIRECTIVES:
            among_agents = False
            if is_ours:
                yield line


def _directives(text: str) -> Iterator[tuple[str, str, str]]:
    """Each line that says something: its field, its value and itself, as Protego reads them."""
    for line in text.splitlines():
        bare = line.partition("#")[0].strip()
        if bare and (read := _extract_directive(bare)):
            yield *read, bare


def _names(value: str) -> tuple[str, ...]:
    """The user agents that a line names: asterisks have no meaning in a name."""
    name = value.strip().lower()
    bare = name if name == "*" else name.replace("*", "")
    return (name, bare) if bare else ()


def _score(name: str, agent: str) -> int:
    """How well a name fits a user agent, as Protego has it; 0: not at all."""
    if name == "*":
        return 1
    known = agent.strip().lower()
    at = known.find(name)
    while at > 0 and (known[at - 1].isalnum() or known[at - 1] in "-_"):
        at = known.find(name, at + 1)
    return 0 if at < 0 else len(name)
