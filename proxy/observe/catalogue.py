"""Every metric by name, with its labels and what it means: the source of `/metrics` and of docs/metrics.md.

Names follow OpenTelemetry's GenAI conventions where these have one, in Prometheus spelling.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_LATENCY_SECONDS = (
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
_OVERHEAD_SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5)
_TPOT_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0)


class Kind(Enum):
    """What a metric is to Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Counters are listed with their `_total` suffix; histograms carry their upper bounds."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()


REQUESTS = Metric(
    "weir_requests_total", Kind.COUNTER, ("route", "lane", "status"), "Exchanges that ended, by status class."
)
ERRORS = Metric("weir_errors_total", Kind.COUNTER, ("code",), "Exchanges that failed, by error code.")
TTFT = Metric(
    "gen_ai_server_time_to_first_token_seconds",
    Kind.HISTOGRAM,
    ("route", "model"),
    "Request sent upstream until the first non-empty content of a stream.",
    _LATENCY_SECONDS,
)
TPOT = Metric(
    "gen_ai_server_time_per_output_token_seconds",
    Kind.HISTOGRAM,
    ("route", "model"),
    "(end - first token) / (output tokens - 1) of a stream.",
    _TPOT_SECONDS,
)
TOTAL = Metric(
    "gen_ai_server_request_duration_seconds",
    Kind.HISTOGRAM,
    ("route", "model"),
    "First byte of the request until the last byte of the answer.",
    _LATENCY_SECONDS,
)
TOKEN_USAGE = Metric(
    "gen_ai_client_token_usage",
    Kind.HISTOGRAM,
    ("route", "model", "gen_ai_token_type"),
    "Tokens of one request as the upstream reported them, by type (input or output).",
    _TOKENS,
)
OVERHEAD = Metric(
    "weir_overhead_seconds",
    Kind.HISTOGRAM,
    ("route",),
    "Weir's own time per exchange: neither waiting for the upstream nor in a deliberate wait.",
    _OVERHEAD_SECONDS,
)
QUEUE = Metric(
    "weir_queue_seconds",
    Kind.HISTOGRAM,
    ("route",),
    "Deliberate wait per exchange: for a connection, a retry or a pool window.",
    _LATENCY_SECONDS,
)
TOKENS = Metric(
    "weir_tokens_total",
    Kind.COUNTER,
    ("route", "model", "kind"),
    "Tokens by kind: input, output, cached, cache_write, reasoning.",
)
TOKENS_SAVED = Metric(
    "weir_tokens_saved_total", Kind.COUNTER, ("route", "step"), "Input tokens that a step removed."
)
TOKEN_FALLBACKS = Metric(
    "weir_token_count_fallbacks_total",
    Kind.COUNTER,
    (),
    "Texts whose tokens could not be counted and were estimated from their length.",
)
STEPS = Metric("weir_steps_total", Kind.COUNTER, ("step", "status"), "Step runs by outcome.")
LANES = Metric("weir_lane_decisions_total", Kind.COUNTER, ("lane", "reason"), "Lane decisions by reason.")
POOLED = Metric(
    "weir_pooled_requests_total",
    Kind.COUNTER,
    ("route", "strategy", "closed_by"),
    "Exchanges of the coalesce lane, by how they were carried and by what let them leave.",
)
MICRO_BATCH = Metric(
    "weir_micro_batch_size",
    Kind.HISTOGRAM,
    ("strategy",),
    "Callers in one upstream call of the coalesce lane.",
    (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0),
)
POOL_WAIT = Metric(
    "weir_pool_wait_seconds",
    Kind.HISTOGRAM,
    ("strategy",),
    "Deliberate wait of exchanges of the coalesce lane, those that did not wait included.",
    (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
)
CALLS_SAVED = Metric(
    "weir_upstream_calls_saved_total",
    Kind.COUNTER,
    ("route", "strategy"),
    "Upstream calls that were not made because another exchange's call served this one, too.",
)
WARM_TOKENS = Metric(
    "weir_warm_prompt_tokens_total",
    Kind.COUNTER,
    ("route", "prefix", "kind"),
    "Prompt tokens of requests with a long prefix, and those of them read from the provider's cache (kind: "
    "input, cached), by what was known of the prefix: cold, warm, or expired where waiting was in vain.",
)
RETRIES = Metric("weir_retries_total", Kind.COUNTER, ("upstream",), "Requests sent to an upstream once more.")
REWRITES_REFUSED = Metric(
    "weir_rewrites_refused_total",
    Kind.COUNTER,
    ("upstream", "param"),
    "Requests taken only without a parameter that a policy had added, or as the caller wrote them.",
)
CAPPED_EMPTY = Metric(
    "weir_capped_and_empty_total",
    Kind.COUNTER,
    ("route",),
    "Answers that ended at the output cap without any visible content.",
)
RELOADS = Metric(
    "weir_policy_reloads_total", Kind.COUNTER, ("result",), "Policy reloads by result (ok, rejected)."
)
LOG_DROPPED = Metric(
    "weir_access_log_dropped_total",
    Kind.COUNTER,
    (),
    "Access log lines dropped because the sink is too slow.",
)
IN_FLIGHT = Metric("weir_in_flight", Kind.GAUGE, (), "Exchanges in progress.")
CONNECTIONS = Metric(
    "weir_upstream_connections", Kind.GAUGE, ("upstream", "state"), "Upstream connections, in_use or idle."
)
CALLERS = Metric("weir_downstream_connections", Kind.GAUGE, (), "Connections from callers.")
POLICY = Metric("weir_policy_info", Kind.GAUGE, ("version",), "1 for the policy set in force.")
POLICY_BAD = Metric(
    "weir_policy_rejected",
    Kind.GAUGE,
    (),
    "1 while the policy files on disk are invalid and an older set is kept.",
)
LOOP_LAG = Metric(
    "weir_event_loop_lag_seconds",
    Kind.HISTOGRAM,
    (),
    "How late the event loop ran a timer.",
    (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0),
)

JOBS = Metric("weir_jobs", Kind.GAUGE, ("state",), "Jobs in the store, by state.")
JOB_AGE = Metric(
    "weir_job_oldest_age_seconds", Kind.GAUGE, ("state",), "Age of the oldest job in each state that has any."
)
JOB_BATCHES = Metric("weir_job_batches", Kind.GAUGE, ("state",), "Batches in the store, by state.")
JOB_STORE_DOWN = Metric(
    "weir_job_store_unavailable",
    Kind.GAUGE,
    (),
    "1 while the job store does not answer and nothing is deferred.",
)
JOBS_HELD = Metric(
    "weir_job_callers_held", Kind.GAUGE, (), "Callers that are held for the answers of their jobs."
)
JOBS_ENDED = Metric(
    "weir_jobs_ended_total", Kind.COUNTER, ("route", "tier", "ended_as"), "Jobs that ended, by how."
)
JOB_MARGIN = Metric(
    "weir_job_deadline_margin_seconds",
    Kind.HISTOGRAM,
    ("tier",),
    "How long before its deadline a job ended; what came after it is in the first bucket.",
    (0.0, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0),
)
JOB_RESCUES = Metric(
    "weir_job_rescues_total", Kind.COUNTER, ("route", "tier"), "Direct calls for jobs whose tier was late."
)
JOB_BATCH_SIZE = Metric(
    "weir_job_batch_size",
    Kind.HISTOGRAM,
    ("upstream",),
    "Jobs in one batch that a provider accepted.",
    (1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0, 10000.0, 50000.0),
)
JOB_EXECUTIONS = Metric(
    "weir_job_executions_total",
    Kind.COUNTER,
    ("route", "tier", "kind"),
    "Executions of jobs that were booked, by the tier that the provider used and by what became of them.",
)
JOB_USD = Metric(
    "weir_job_usd_total", Kind.COUNTER, ("route", "tier"), "US dollars paid for jobs, where prices are known."
)
JOB_STANDARD_USD = Metric(
    "weir_job_standard_usd_total",
    Kind.COUNTER,
    ("route",),
    "US dollars that the answers of jobs would have cost without deferring.",
)
JOB_TROUBLE = Metric(
    "weir_job_trouble_total",
    Kind.COUNTER,
    ("kind", "upstream"),
    "What went wrong with deferred work and was dealt with.",
)

WEBHOOK_SENT = Metric(
    "weir_webhook_sent_total", Kind.COUNTER, ("webhook",), "Events that a webhook has taken."
)
WEBHOOK_FAILURES = Metric(
    "weir_webhook_failures_total", Kind.COUNTER, ("webhook", "kind"), "Tries to tell an event that failed."
)
WEBHOOK_GIVEN_UP = Metric(
    "weir_webhook_given_up_total", Kind.COUNTER, ("webhook",), "Events that are not told any more."
)
WEBHOOK_DISABLED = Metric(
    "weir_webhook_disabled", Kind.GAUGE, ("webhook",), "1 while a webhook is tried once an hour only."
)

SERVED_BATCHES = Metric(
    "weir_served_batches", Kind.GAUGE, ("status",), "Batches of Weir's own batch API, by status."
)
SERVED_WAITING = Metric(
    "weir_served_lines_waiting", Kind.GAUGE, (), "Lines of live batches that have no result yet."
)
SERVED_IN_FLIGHT = Metric(
    "weir_served_lines_in_flight", Kind.GAUGE, ("upstream",), "Lines of batches that an upstream works on."
)
SERVED_LIMIT = Metric(
    "weir_served_limit",
    Kind.GAUGE,
    ("upstream",),
    "Lines that may be in flight at once beside any request of callers; 0: beside some of them only.",
)
SERVED_INTERACTIVE = Metric(
    "weir_served_interactive_total",
    Kind.COUNTER,
    ("upstream", "met"),
    "Callers' requests at an upstream that is served, by the lines that they met there.",
)
SERVED_ENDED = Metric(
    "weir_served_batches_ended_total", Kind.COUNTER, ("upstream", "status"), "Batches that ended, by status."
)
SERVED_LINES = Metric(
    "weir_served_lines_total",
    Kind.COUNTER,
    ("upstream", "outcome"),
    "Lines that have their results: completed, failed, expired, cancelled.",
)
SERVED_RETRIES = Metric(
    "weir_served_line_retries_total",
    Kind.COUNTER,
    ("upstream", "reason"),
    "Tries of lines that were followed by another, by status or error code.",
)
SERVED_GAVE_WAY = Metric(
    "weir_served_lines_gave_way_total",
    Kind.COUNTER,
    ("upstream",),
    "Calls of lines that were cut off for a caller's request, to be sent again.",
)

SHARED: frozenset[str] = frozenset(
    metric.name for metric in (JOBS, JOB_AGE, JOB_BATCHES, SERVED_BATCHES, SERVED_WAITING, WEBHOOK_DISABLED)
)
"""Gauges of what all processes look at, or of which one suffices: the largest counts, not the sum."""

METRICS: tuple[Metric, ...] = (
    REQUESTS,
    ERRORS,
    TTFT,
    TPOT,
    TOTAL,
    TOKEN_USAGE,
    OVERHEAD,
    QUEUE,
    TOKENS,
    TOKENS_SAVED,
    TOKEN_FALLBACKS,
    STEPS,
    LANES,
    POOLED,
    MICRO_BATCH,
    POOL_WAIT,
    CALLS_SAVED,
    WARM_TOKENS,
    RETRIES,
    REWRITES_REFUSED,
    CAPPED_EMPTY,
    RELOADS,
    LOG_DROPPED,
    IN_FLIGHT,
    CONNECTIONS,
    CALLERS,
    POLICY,
    POLICY_BAD,
    LOOP_LAG,
    JOBS,
    JOB_AGE,
    JOB_BATCHES,
    JOB_STORE_DOWN,
    JOBS_HELD,
    JOBS_ENDED,
    JOB_MARGIN,
    JOB_RESCUES,
    JOB_BATCH_SIZE,
    JOB_EXECUTIONS,
    JOB_USD,
    JOB_STANDARD_USD,
    JOB_TROUBLE,
    WEBHOOK_SENT,
    WEBHOOK_FAILURES,
    WEBHOOK_GIVEN_UP,
    WEBHOOK_DISABLED,
    SERVED_BATCHES,
    SERVED_WAITING,
    SERVED_IN_FLIGHT,
    SERVED_LIMIT,
    SERVED_INTERACTIVE,
    SERVED_ENDED,
    SERVED_LINES,
    SERVED_RETRIES,
    SERVED_GAVE_WAY,
)
