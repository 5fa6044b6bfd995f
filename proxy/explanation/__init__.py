"""What would happen to a request, and to many: for `weir explain`, `POST /explain` and a caller's dry run.

It decides nothing itself: the pipeline does, exactly as for a live request, and leaves a trace to measure.
"""

from __future__ import annotations

from proxy.explanation.single import explain_request, explanation, rejection, sent_body

__all__ = ["explain_request", "explanation", "rejection", "sent_body"]
