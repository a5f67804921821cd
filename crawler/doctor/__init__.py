"""Health and readiness: each module looks at one subject and returns findings."""
