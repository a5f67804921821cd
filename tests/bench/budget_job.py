"""Run a planning job like the web app, and add the peak memory to its messages."""

from __future__ import annotations

import asyncio
import json
import resource

from crawler.reports.jobs import main

if __name__ == "__main__":
    asyncio.run(main())
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mb": peak_mb}))
