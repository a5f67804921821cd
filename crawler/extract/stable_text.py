"""Leave out the parts of a text that change although its page does not.

Such parts are relative times ("3 minutes ago"), numbers of views and visitors, and notes on when a
page was made. Hashes of extracted main texts ignore them; the stored texts keep them.
"""

from __future__ import annotations

import re

_COUNT = r"\d[\d.,\u00a0\u202f ]{0,12}[km]?"
_SOME = r"(?:\d{1,4}|an?|one|a few)"
_UNITS = r"(?:seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?)"
# By signs: each match contains one of the signs in lower case. Only lines with a sign are
# searched for its pattern, because the search for a sign takes a hundredth of the time. All
# repetitions are bounded.
_RELATIVE_TIMES = {
    (" ago",): rf"\b{_SOME} {_UNITS}(?:,? (?:and )?{_SOME} {_UNITS})? ago\b"
    r"|\b\d{1,3} ?[smhdwy] ago\b|\bmoments ago\b",
    ("just now",): r"\bjust now\b",
    ("vor ",): r"\bvor (?:\d{1,4}|einer|einem|wenigen) "
    r"(?:sekunden?|minuten?|stunden?|tag(?:en)?|wochen?|monat(?:en)?|jahr(?:en)?)\b",
    ("il y a ",): r"\bil y a (?:\d{1,4}|une?|quelques) "
    r"(?:secondes?|minutes?|heures?|jours?|semaines?|mois|ans?)\b",
    ("hace ",): r"\bhace (?:\d{1,4}|una?|unos|unas) "
    r"(?:segundos?|minutos?|horas?|d[i\u00ed]as?|semanas?|mes(?:es)?|a\u00f1os?)\b",
    ("h\u00e1 ",): r"\bh\u00e1 (?:\d{1,4}|uma?) (?:segundos?|minutos?|horas?|dias?|semanas?"
    r"|m[e\u00ea]s(?:es)?|anos?)\b",
    ("i fa", "e fa", "o fa", "a fa"): r"\b(?:\d{1,4}|una?) (?:second[oi]|minut[oi]|or[ae]"
    r"|giorn[oi]|settiman[ae]|mes[ei]|ann[oi]) fa\b",
    (" geleden",): r"\b(?:\d{1,4}|een) (?:seconden?|minuut|minuten|uur|uren|dag(?:en)?|week|weken"
    r"|maand(?:en)?|jaar) geleden\b",
    (" temu",): r"\b\d{1,4} (?:sekund\w?|minut\w?|godzin\w?|dni|tygodni\w?|miesi\w{1,5}|lat\w?)"
    r" temu\b",
    ("\u043d\u0430\u0437\u0430\u0434",): r"\b(?:\d{1,4} )?"
    r"(?:\u0441\u0435\u043a\u0443\u043d\u0434|\u043c\u0438\u043d\u0443\u0442"
    r"|\u0447\u0430\u0441|\u0434\u043d|\u0434\u0435\u043d\u044c|\u043d\u0435\u0434\u0435\u043b"
    r"|\u043c\u0435\u0441\u044f\u0446|\u0433\u043e\u0434|\u043b\u0435\u0442)\w{0,3}"
    r" \u043d\u0430\u0437\u0430\u0434\b",
    ("\u524d",): r"\d{1,4} ?(?:\u79d2|\u5206\u949f|\u5206\u9418|\u5206|\u5c0f\u65f6|\u5c0f\u6642"
    r"|\u6642\u9593|\u5929|\u65e5|\u5468|\u9031\u9593|\u4e2a\u6708|\u500b\u6708|\u304b\u6708"
    r"|\u5e74) ?\u524d",
    ("\uc804",): r"\d{1,4} ?(?:\ucd08|\ubd84|\uc2dc\uac04|\uc77c|\uc8fc|\uac1c\uc6d4|\ub144)"
    r" ?\uc804",
}
_VIEWS = ("view", "aufruf", "vues")
_COUNTERS = {
    _VIEWS: rf"\b{_COUNT} (?:page ?)?(?:views?|aufrufe|vues)\b(?! (?:of|from|over)\b)"
    rf"|\bviewed {_COUNT} times\b",
    (*_VIEWS, "hits"): rf"\b(?:page ?)?(?:views|aufrufe|vues|hits): ?{_COUNT}(?![\w.])",
    ("online", "view", "watching", "browsing"): rf"\b{_COUNT} (?:users?|guests?|visitors?"
    r"|members?|people|customers|shoppers|others)"
    r"(?: are| is)?(?: currently| now| also)? (?:online|viewing|watching|browsing)\b",
    ("\u043f\u0440\u043e\u0441\u043c",): rf"\b{_COUNT} "
    r"\u043f\u0440\u043e\u0441\u043c\u043e\u0442\u0440\w{0,2}\b",
}
# Whole lines, from their first word on. Years and times, because "Today: 5 offers" is content.
_NOTE_STARTS = (
    "page ", "this page ", "site was ", "this site was ", "generated ", "rendered ", "loaded ",
    "executed ", "today", "heute", "current ", "local ", "server ", "the current ", "the local ",
    "the server ",
)  # fmt: skip
_NOTE = re.compile(
    r"(?:(?:this )?(?:page|site was) (?:was )?(?:generated|rendered|created|loaded|served"
    r"|processed|executed|built|made)\b"
    r"|(?:generated|rendered|loaded|executed) in \d[\d.,]{0,9} ?(?:ms|s|secs?|seconds?)\b"
    r"|(?:today(?: is|:)|heute(?: ist|:)|(?:the )?(?:current|local|server) (?:date|time)(?: is|:))"
    r" (?:.{0,40}\b20\d\d\b|\d{1,2}:\d\d|[a-z]{2,8}(?:day|tag|woch)\b)).{0,200}",
    re.I,
)
_UNSTABLE = tuple(
    (signs, re.compile(pattern, re.I)) for signs, pattern in (_RELATIVE_TIMES | _COUNTERS).items()
)


def without_unstable(text: str) -> str:
    """Return a text without relative times, counters of views, and notes on when it was made."""
    lowered, lines = text.lower(), text.split("\n")
    patterns = [
        (found, pattern)
        for signs, pattern in _UNSTABLE
        if (found := [sign for sign in signs if sign in lowered])
    ]
    for i, line in enumerate(lowered.split("\n")):
        if line.startswith(_NOTE_STARTS) and _NOTE.fullmatch(lines[i]):
            lines[i] = ""
            continue
        for signs, pattern in patterns:
            if any(sign in line for sign in signs):
                lines[i] = pattern.sub("", lines[i])
    return "\n".join(lines)
