"""Runs the OpenAI part of docs/webhooks.md over deliveries: prints what it makes of each, as JSON.

unwrapping.py CODE DELIVERIES    both files; DELIVERIES is a list of [body, headers]
"""

import json
import sys
from pathlib import Path

page = {}
exec(compile(Path(sys.argv[1]).read_text(encoding="utf-8"), "docs/webhooks.md", "exec"), page)
seen = []
for body, headers in json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")):
    try:
        seen.append(page["handle"](body, headers))
    except Exception as problem:
        seen.append(type(problem).__name__)
print(json.dumps(seen))
