"""One line of a batch: what becomes of it, and how its result is written.

It owns the rules for single lines and both shapes of an error. The answer itself comes from the same reading
and the same generation as a live call's; only price and counter are the batch tier's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from proxy.sim import chat, completions, embeddings, moderations, responses
from proxy.sim.admission import check_model
from proxy.sim.cache import PrefixCache
from proxy.sim.deferred.batch import Batch
from proxy.sim.deferred.checking import Line
from proxy.sim.deferred.rules import LineRule
from proxy.sim.errors import ApiError, Family, error_body, failure
from proxy.sim.faults import Faults
from proxy.sim.scenario import Scenario
from proxy.sim.stats import Stats
from proxy.sim.text import seeded
from proxy.sim.work import Bill, Call, Identity, Shape, to_json

SHAPES: Mapping[str, Shape] = {
    shape.path: shape
    for shape in (chat.SHAPE, completions.SHAPE, embeddings.SHAPE, moderations.SHAPE, responses.SHAPE)
}
TIER = "batch"
EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "This request was not executed because the batch was cancelled.")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a line: the lines that it leaves in the two files, none where it got lost."""

    results: tuple[bytes, ...] = ()
    failures: tuple[bytes, ...] = ()
    bill: Bill | None = None


def rules_of(batch: Batch, scenario: Scenario) -> tuple[LineRule, ...]:
    """Return the rules for a batch's lines: those asked of it alone, then the scenario's."""
    asked = Faults(**batch.faults)
    own = []
    if asked.batch_fail_share is not None:
        status = asked.batch_fail_status or 500
        own.append(LineRule(status=status, code=asked.batch_fail_code, share=asked.batch_fail_share))
    if asked.batch_missing_share is not None:
        own.append(LineRule(missing=True, share=asked.batch_missing_share))
    if asked.batch_duplicate_share is not None:
        own.append(LineRule(duplicate=True, share=asked.batch_duplicate_share))
    return (*own, *scenario.batches.lines)


def rule_for(
    batch: Batch, rules: tuple[LineRule, ...], line: Line, body_hash: str, attempt: int, seed: int
) -> LineRule | None:
    """Return the first rule that hits a line, None if none does.

    Draws depend on seed, body and attempt alone: who chooses other custom ids or cuts other batches gets the
    same fate for the same body.
    """
    for index, rule in enumerate(rules):
        if rule.contains is not None and rule.contains.encode() not in line.raw_body:
            continue
        seen = batch.rule_hits.get(str(index), 0) + 1
        batch.rule_hits[str(index)] = seen
        if rule.first is not None and attempt > rule.first:
            continue
        if seen % rule.every:
            continue
        if seeded("line", str(seed), str(index), body_hash, str(attempt)).random() < rule.share:
            return rule
    return None


class LineRunner:
    """Runs lines against one provider's cache and counters."""

    def __init__(self, scenario: Scenario, cache: PrefixCache, stats: Stats) -> None:
        self._scenario = scenario
        self._cache = cache
        self._stats = stats

    def run(self, line: Line, call: Call, rule: LineRule | None) -> Outcome:
        """Run a line as `call`, unless `rule` fails or loses it."""
        result = _Result(call.identity, line.custom_id)
        if rule is not None and rule.missing:
            return Outcome()
        if rule is not None and not rule.duplicate:
            if rule.status is None:
                code = rule.code or "request_timeout"
                message = "The request was not executed. (simulated)"
                return Outcome(failures=(result.unexecuted(code, message),))
            return Outcome(failures=(result.refused(failure(rule.status, rule.code)),))
        try:
            body, bill = self._answer(line, call)
        except ApiError as error:
            return Outcome(failures=(result.refused(error),))
        except Exception as error:  # a mistake of ours must cost one line, not the provider
            message = f"The server had an error. (simulated, {type(error).__name__})"
            return Outcome(failures=(result.refused(ApiError(500, message, "server_error")),))
        copies = 2 if rule is not None else 1
        return Outcome(results=(result.answered(body),) * copies, bill=bill)

    def _answer(self, line: Line, call: Call) -> tuple[Mapping[str, object], Bill]:
        shape = SHAPES[line.url]
        work = shape.read(call)
        check_model(work, shape.family, self._scenario)
        scope = f"{call.caller} {work.model}"
        bill = Bill(
            input_tokens=work.input_tokens,
            output_tokens=work.output_tokens_by(work.last_step),
            reasoning_tokens=work.reasoning_tokens_by(work.last_step),
            cached_tokens=self._cache.read(scope, work.cache_marks),
        )
        body = work.answer.whole(bill)
        self._cache.write(scope, work.cache_marks)
        self._stats.executed(call.body_hash, TIER)
        self._stats.line_executed(line.custom_id)
        self._stats.billed(replace(bill, tier=TIER))
        return body, bill


@dataclass(frozen=True, slots=True)
class _Result:
    """Result lines of one request in OpenAI's shapes."""

    identity: Identity
    custom_id: str

    def answered(self, body: Mapping[str, object]) -> bytes:
        return self._line(self._response(200, body), None)

    def refused(self, error: ApiError) -> bytes:
        """The first shape of an error: an HTTP answer that is not a 200."""
        return self._line(self._response(error.status, error_body(Family.OPENAI, error, "")), None)

    def unexecuted(self, code: str, message: str) -> bytes:
        """The second shape of an error: there is no answer."""
        return self._line(None, {"code": code, "message": message})

    def _response(self, status: int, body: Mapping[str, object]) -> dict[str, object]:
        request_id = self.identity.make("req_", length=32)
        return {"status_code": status, "request_id": request_id, "body": body}

    def _line(self, response: object, error: object) -> bytes:
        line_id = self.identity.make("batch_req_", length=32)
        return to_json({"id": line_id, "custom_id": self.custom_id, "response": response, "error": error})


def unexecuted_line(identity: Identity, custom_id: str, code: str, message: str) -> bytes:
    """Return the error line of a request that never ran."""
    return _Result(identity, custom_id).unexecuted(code, message)


def hash_of(raw: bytes) -> str:
    """Return the name under which a body is counted: the sha256 of its bytes."""
    return hashlib.sha256(raw).hexdigest()
