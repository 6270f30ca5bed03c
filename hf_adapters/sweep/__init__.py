"""The sweep: plan (deduplicate, order by impact), execute in isolated workers, record verdicts as they come."""
