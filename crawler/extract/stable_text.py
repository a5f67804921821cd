"""Leave out the parts of a text that change although its page does not.

Such parts are relative times ("3 minutes ago"), numbers of views and visitors, and notes on when a
page was made. Hashes of extracted main texts ignore them; the stored texts keep them.
"""

from __future__ import annotations

import re

_COUNT = r"\d[\d.,\u00a0\u202f ]{0,12}[km]?"
_SOME = r"(?:\d{1,4}|an?|one|a few)"
_UNITS = r"(?:seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?)"
# Each pattern begins or ends with one of a few words, and all repetitions are bounded.
_RELATIVE_TIMES = (
    rf"\b{_SOME} {_UNITS}(?:,? (?:and )?{_SOME} {_UNITS})? ago\b|\b\d{{1,3}} ?[smhdwy] ago\b",
    r"\b(?:just now|moments ago)\b",
    r"\bvor (?:\d{1,4}|einer|einem|wenigen) "
    r"(?:sekunden?|minuten?|stunden?|tag(?:en)?|wochen?|monat(?:en)?|jahr(?:en)?)\b",
    r"\bil y a (?:\d{1,4}|une?|quelques) "
    r"(?:secondes?|minutes?|heures?|jours?|semaines?|mois|ans?)\b",
    r"\bhace (?:\d{1,4}|una?|unos|unas) "
    r"(?:segundos?|minutos?|horas?|d[i\u00ed]as?|semanas?|mes(?:es)?|a\u00f1os?)\b",
    r"\bh\u00e1 (?:\d{1,4}|uma?) (?:segundos?|minutos?|horas?|dias?|semanas?|m[e\u00ea]s(?:es)?"
    r"|anos?)\b",
    r"\b(?:\d{1,4}|una?) (?:second[oi]|minut[oi]|or[ae]|giorn[oi]|settiman[ae]|mes[ei]|ann[oi])"
    r" fa\b",
    r"\b(?:\d{1,4}|een) (?:seconden?|minuut|minuten|uur|uren|dag(?:en)?|week|weken|maand(?:en)?"
    r"|jaar) geleden\b",
    r"\b\d{1,4} (?:sekund\w?|minut\w?|godzin\w?|dni|tygodni\w?|miesi\w{1,5}|lat\w?) temu\b",
    r"\b(?:\d{1,4} )?(?:\u0441\u0435\u043a\u0443\u043d\u0434|\u043c\u0438\u043d\u0443\u0442"
    r"|\u0447\u0430\u0441|\u0434\u043d|\u0434\u0435\u043d\u044c|\u043d\u0435\u0434\u0435\u043b"
    r"|\u043c\u0435\u0441\u044f\u0446|\u0433\u043e\u0434|\u043b\u0435\u0442)\w{0,3}"
    r" \u043d\u0430\u0437\u0430\u0434\b",
    r"\d{1,4} ?(?:\u79d2|\u5206\u949f|\u5206\u9418|\u5206|\u5c0f\u65f6|\u5c0f\u6642|\u6642\u9593"
    r"|\u5929|\u65e5|\u5468|\u9031\u9593|\u4e2a\u6708|\u500b\u6708|\u304b\u6708|\u5e74) ?\u524d",
    r"\d{1,4} ?(?:\ucd08|\ubd84|\uc2dc\uac04|\uc77c|\uc8fc|\uac1c\uc6d4|\ub144) ?\uc804",
)
_COUNTERS = (
    rf"\b{_COUNT} (?:page ?)?(?:views?|aufrufe|vues)\b(?! (?:of|from|over)\b)",
    rf"\bviewed {_COUNT} times\b",
    rf"\b(?:page ?)?(?:views|aufrufe|vues|hits): ?{_COUNT}(?![\w.])",
    rf"\b{_COUNT} (?:users?|guests?|visitors?|members?|people|customers|shoppers|others)"
    r"(?: are| is)?(?: currently| now| also)? (?:online|viewing|watching|browsing)\b",
    rf"\b{_COUNT} \u043f\u0440\u043e\u0441\u043c\u043e\u0442\u0440\w{{0,2}}\b",
)
# Whole lines. Years and times, because "Today: 5 offers" is content.
_NOTES = (
    r"^(?:this )?(?:page|site was) (?:was )?(?:generated|rendered|created|loaded|served|processed"
    r"|executed|built|made)\b.{0,200}$",
    r"^(?:generated|rendered|loaded|executed) in \d[\d.,]{0,9} ?(?:ms|s|secs?|seconds?)\b.{0,200}$",
    r"^(?:today(?: is|:)|heute(?: ist|:)|(?:the )?(?:current|local|server) (?:date|time)(?: is|:))"
    r" (?:.{0,40}\b20\d\d\b|\d{1,2}:\d\d|[a-z]{2,8}(?:day|tag|woch)\b).{0,100}$",
)
_UNSTABLE = re.compile("|".join((*_RELATIVE_TIMES, *_COUNTERS, *_NOTES)), re.I)
# Each match contains one of these in lower case. Searching for them is a hundred times as fast.
_SIGNS = (
    " ago", "just now", "vor ", "il y a ", "hace ", "h\u00e1 ", "i fa", "e fa", "o fa", "a fa",
    " geleden", " temu", "\u043d\u0430\u0437\u0430\u0434", "\u524d", "\uc804", "view", "aufruf",
    "vues", "hits", "online", "watching", "browsing", "\u043f\u0440\u043e\u0441\u043c", "page ",
    "generated", "rendered", "loaded", "executed", "site was", "today", "heute", "current ",
    "local ", "server ",
)  # fmt: skip


def without_unstable(text: str) -> str:
    """Return a text without relative times, counters of views, and notes on when it was made."""
    lowered = text.lower()
    signs = [sign for sign in _SIGNS if sign in lowered]
    if not signs:
        return text
    return "\n".join(
        _UNSTABLE.sub("", line) if any(sign in line.lower() for sign in signs) else line
        for line in text.split("\n")
    )
