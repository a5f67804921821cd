"""Leave out the parts of a text that change although its page does not.

These are relative times ("3 minutes ago"), numbers of views and visitors, and notes on when a page
was made.
"""

from __future__ import annotations

import re

_COUNT = r"\d[\d.,\u00a0\u202f ]{0,12}[km]?"
_WORDS = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_SOME = rf"(?:\d{{1,4}}|an?|one|a few|several|{_WORDS})"
_UNITS = r"(?:seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?)"
# By signs: each match contains one of the signs in lower case. Only lines with a sign are
# searched for its pattern, because the search for a sign takes a hundredth of the time. All
# repetitions are bounded.
_RELATIVE_TIMES = {
    (" ago",): r"\b(?:(?:about|almost|around|over|less than|more than) )?"
    rf"{_SOME} {_UNITS}(?:,? (?:and )?{_SOME} {_UNITS})? ago\b"
    r"|\b\d{1,3} ?[smhdwy] ago\b|\bmoments ago\b",
    ("just now",): r"\bjust now\b",
    ("vor ",): r"\bvor (?:\d{1,4}|einer|einem|wenigen) "
    r"(?:sekunden?|sek|minuten?|min|stunden?|std|tag(?:en)?|wochen?|monat(?:en)?|jahr(?:en)?)\b\.?",
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
    ("atr\u00e1s",): r"\b(?:\d{1,4}|uma?) (?:segundos?|minutos?|horas?|dias?|semanas?"
    r"|m[e\u00ea]s(?:es)?|anos?) atr\u00e1s\b",
    (
        "sedan",
        "siden",
    ): r"\b(?:f[o\u00f6]r )?(?:\d{1,4}|ett?|en) (?:sek\w{0,5}|min\w{0,6}|tim\w{1,4}"
    r"|dag\w{0,3}|d\u00f8gn|veck\w{1,2}|uker?|uger?|m\u00e5na?d\w{0,3}|\u00e5r) (?:sedan|siden)\b",
    ("sitten",): r"\b\d{1,4} \w{2,12} sitten\b",
    ("p\u0159ed ", "pred "): r"\bp[r\u0159]ed (?:\d{1,4} )?(?:sekund|minut|min\u00fat|hodin|dn"
    r"|t\u00fddn|t\u00fd\u017ed|m\u011bs\u00edc|mesiac|rok|let)\w{0,4}\b",
    ("perce", "\u00f3r\u00e1ja", "napja", "hete"): r"\b\d{1,4} (?:m\u00e1sod)?(?:perce"
    r"|\u00f3r\u00e1ja|napja|hete)\b",
    ("\u00f6nce",): r"\b\d{1,4} (?:saniye|dakika|saat|g\u00fcn|hafta|ay|y\u0131l) \u00f6nce\b",
    ("acum ",): r"\bacum (?:\d{1,4}|un|o) (?:de )?(?:secund|minut|or|zi|s\u0103pt|lun|an)\w{0,7}\b",
    ("\u0442\u043e\u043c\u0443",): r"\b\d{1,4} \w{2,10} \u0442\u043e\u043c\u0443\b",
    ("\u03c0\u03c1\u03b9\u03bd",): r"\b\u03c0\u03c1\u03b9\u03bd (?:\u03b1\u03c0\u03cc )?"
    r"\d{1,3} \w{3,12}\b",
    ("\u0645\u0646\u0630",): r"\b\u0645\u0646\u0630 (?:\d{1,3} )?[^\W\d_]{3,8}\b",
    ("tr\u01b0\u1edbc",): r"\b\d{1,4} (?:gi\u00e2y|ph\u00fat|gi\u1edd|ng\u00e0y|tu\u1ea7n"
    r"|th\u00e1ng|n\u0103m) tr\u01b0\u1edbc\b",
    ("lalu",): r"\b\d{1,4} (?:detik|menit|jam|hari|minggu|bulan|tahun)(?: yang)? lalu\b",
    ("\u524d",): r"\d{1,4} ?(?:\u79d2|\u5206\u949f|\u5206\u9418|\u5206|\u5c0f\u65f6|\u5c0f\u6642"
    r"|\u6642\u9593|\u5929|\u65e5|\u5468|\u9031\u9593|\u4e2a\u6708|\u500b\u6708|\u304b\u6708"
    r"|\u5e74) ?\u524d",
    ("\uc804",): r"\d{1,4} ?(?:\ucd08|\ubd84|\uc2dc\uac04|\uc77c|\uc8fc|\uac1c\uc6d4|\ub144)"
    r" ?\uc804",
}
_VIEWS = ("view", "aufruf", "vues")
_OTHER_VIEWS = (
    "zugriffe", "gelesen", "angesehen", "visitas", "vistas", "visualiza", "visualizza", "letture",
    "bekeken", "weergaven", "wy\u015bwietle\u0144", "ods\u0142on", "visning",
    "g\u00f6r\u00fcnt\u00fclen", "okunma",
)  # fmt: skip
_VIEW_WORDS = (
    r"zugriffe|mal (?:gelesen|angesehen)|visitas|vistas|visualizaciones|visualiza\u00e7\u00f5es"
    r"|visualizzazioni|letture|keer bekeken|weergaven|wy\u015bwietle\u0144|ods\u0142on"
    r"|visningar|visninger|g\u00f6r\u00fcnt\u00fclenme|okunma"
)
_CJK_VIEWS = (
    "\u6d4f\u89c8", "\u9605\u8bfb", "\u700f\u89bd", "\u70b9\u51fb", "\u95b2\u89a7", "\uc870\ud68c",
)  # fmt: skip
_CJK_VIEW = f"(?:{'|'.join(_CJK_VIEWS)})"
_VISITORS = ("visitor", "besucher", "visiteurs", "visitantes")
_PEOPLE = "(?:people|customers|shoppers|others|users|visitors)"
_SEE = ("sehen", "schauen", "betrachten", "regardent", "viendo")
# The rest of a time, such as "02:13:44" or "2 hrs 13 mins".
_UNIT = r"(?:days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)\b"
_REST = (
    r"(?:\d{1,2}(?::\d\d){1,3}"
    rf"|\d{{1,3}} ?{_UNIT}(?:,? (?:and )?\d{{1,3}} ?{_UNIT}){{0,3}})"
)
_COUNTERS = {
    _VIEWS: rf"\b{_COUNT} (?:page ?)?(?:views?|aufrufe|vues)\b(?! (?:of|from|over)\b)"
    rf"|\bviewed {_COUNT} times\b",
    (*_VIEWS, "hits"): rf"\b(?:page ?)?(?:views|aufrufe|vues|hits): ?{_COUNT}(?![\w.])",
    # As a count of the word, or as a label before the count.
    _OTHER_VIEWS: rf"\b{_COUNT} (?:{_VIEW_WORDS})\b(?! [^\W\d_])"
    rf"|\b(?:{_VIEW_WORDS}):? ?{_COUNT}(?![\w.])",
    _CJK_VIEWS: rf"{_CJK_VIEW}(?:\u6b21\u6570|\u6578|\u6570|\u91cf|\uc218)?[:\uff1a]? ?{_COUNT}"
    rf"(?!\w)|{_COUNT}\u56de{_CJK_VIEW}",
    _VISITORS: rf"\b(?:visitor|besucher)(?: number| nr\.?| no\.?| #)?:? #?{_COUNT}(?![\w.])"
    r"|\b(?:visitors|besucher|visiteurs|visitantes)(?: today| heute| gesamt| total)?: ?"
    rf"{_COUNT}(?![\w.])|\b{_COUNT} (?:visitors|besucher) (?:today|heute)\b",
    ("basket", "cart", " bag"): rf"\b{_COUNT} {_PEOPLE}(?: currently| also)? ha(?:ve|d)"
    r" (?:this|it)(?: item| product)? in (?:their|a) (?:basket|cart|(?:shopping )?bag)s?\b",
    (" last ", " past "): rf"\b{_COUNT}\+? (?:(?:{_PEOPLE}|times) )?(?:have )?"
    r"(?:bought|sold|purchased|ordered|viewed|booked|added)(?: (?:this|it|items?|times?)){0,3}"
    r" in (?:the )?(?:last|past) (?:\d{1,3} )?(?:hours?|days?|week|month)\b",
    (" by ",): rf"\b(?:read|seen|viewed|visited) by {_COUNT} {_PEOPLE}\b",
    (" looking ",): rf"\b{_COUNT} {_PEOPLE}(?: are| is)?(?: currently| now| also)?"
    r" looking at (?:this|it)\b",
    _SEE: rf"\b{_COUNT} (?:(?:andere|weitere|autres?|otras?) )?(?:personen|kunden|leute|besucher"
    r"|nutzer|personnes|clients|personas|clientes)(?: est\u00e1n)?"
    rf" (?:{'|'.join(_SEE)})\b",
    (" in ", " in:", "within "): r"\b(?:(?:ends?|ending|expires?|closes?) in|order within):? "
    rf"{_REST}",
    ("online", "view", "watching", "browsing"): rf"\b{_COUNT} (?:users?|guests?|visitors?"
    r"|members?|people|customers|shoppers|others|besucher|benutzer|nutzer|g\u00e4ste|mitglieder)"
    r"(?: are| is| sind)?(?: currently| now| also| gerade)? (?:online|viewing|watching|browsing)\b",
    ("\u043f\u0440\u043e\u0441\u043c",): rf"\b{_COUNT} "
    r"\u043f\u0440\u043e\u0441\u043c\u043e\u0442\u0440\w{0,2}\b",
}
# Counts of the people who look at a page, in words; searched in lines without digits, too.
_SPELLED = {
    ("watching", "viewing", "browsing", "looking at"): rf"\b(?:one|{_WORDS}) (?:person|{_PEOPLE})"
    r"(?: are| is)?(?: currently| now| also)? (?:watching|viewing|browsing|looking at)"
    r" (?:this|it)\b",
}
# Whole lines, from their first word on. Years and times, because "Today: 5 offers" is content.
_NOTE_STARTS = (
    "page ", "this page ", "site was ", "this site was ", "generated ", "rendered ", "loaded ",
    "executed ", "today", "heute", "current ", "local ", "server ", "the current ", "the local ",
    "the server ", "it is currently ", "aktuelle zeit", "seite ", "page g\u00e9n", "p\u00e1gina g",
    "users browsing this forum", "in total there ", "insgesamt ", "mitglieder in diesem forum",
)  # fmt: skip
_NOTE = re.compile(
    r"(?:(?:this )?(?:page|site was) (?:was )?(?:generated|rendered|created|loaded|served"
    r"|processed|executed|built|made)\b"
    r"|(?:generated|rendered|loaded|executed) in \d[\d.,]{0,9} ?(?:ms|s|secs?|seconds?)\b"
    r"|(?:users browsing this forum|mitglieder in diesem forum):"
    rf"|(?:in total there (?:are|is)|insgesamt sind) {_COUNT} (?:users?|besucher) online\b"
    r"|(?:seite (?:wurde )?(?:in|erzeugt|generiert|geladen)|page g\u00e9n\u00e9r\u00e9e en"
    r"|p\u00e1gina (?:generada|gerada) em?n?)[^\d\n]{0,20}\d[\d.,]{0,9} ?(?:ms|s\w{0,8})\b"
    r"|(?:it is currently|aktuelle zeit:|today(?: is|:)|heute(?: ist|:)"
    r"|(?:the )?(?:current|local|server) (?:date|time)(?: is|:))"
    r" (?:.{0,40}\b20\d\d\b|\d{1,2}:\d\d|[a-z]{2,8}(?:day|tag|woch)\b)).{0,200}",
    re.I,
)
_DIGITS = "0123456789"
_Patterns = tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]
_TIMES: _Patterns = tuple(
    (signs, re.compile(x, re.I)) for signs, x in (_RELATIVE_TIMES | _SPELLED).items()
)
_NUMBERS: _Patterns = tuple((signs, re.compile(x, re.I)) for signs, x in _COUNTERS.items())


def without_unstable(text: str) -> str:
    """Return a text without relative times, counters of views, and notes on when it was made."""
    whole = text.lower()
    lines, lowered = text.split("\n"), whole.split("\n")
    # Counters have a number, which few lines of prose have. Other scripts have digits of their own.
    numbered = {
        i
        for i, line in enumerate(lowered)
        if not line.isascii() or any(digit in line for digit in _DIGITS)
    }
    times = _with_signs(_TIMES, whole)
    numbers = _with_signs(_NUMBERS, "\n".join([lowered[i] for i in sorted(numbered)]))
    for i, line in enumerate(lowered):
        if line.startswith(_NOTE_STARTS) and _NOTE.fullmatch(lines[i]):
            lines[i] = ""
            continue
        for signs, pattern in (*times, *numbers) if i in numbered else times:
            if any(sign in line for sign in signs):
                lines[i] = pattern.sub("", lines[i])
    return "\n".join(lines)


def _with_signs(patterns: _Patterns, text: str) -> list[tuple[list[str], re.Pattern[str]]]:
    """Return the patterns of which a text has signs, with these signs."""
    return [
        (found, pattern)
        for signs, pattern in patterns
        if (found := [sign for sign in signs if sign in text])
    ]
