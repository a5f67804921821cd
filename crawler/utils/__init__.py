"""Small tools that know no site, no target and no database.

Text and counts in words (`text`), shortened differences (`diff`), times and clocks (`time`), URLs
and their shapes (`urls`), regular expressions in linear time (`regex`), files that are replaced
atomically (`files`), output that no terminal acts on (`terminal`), and work with a limit on time
and memory in a process of its own (`sandbox`).
"""
